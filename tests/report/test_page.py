"""The report page: names are escaped, nothing is loaded from elsewhere, and a real run of the embedded model gives a page."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.bench.fixture import fill
from tests.report.stores import put, row, rows_of
from vitreous.cli.main import main
from vitreous.core.errors import DataError
from vitreous.report import write_report
from vitreous.report.page import name_sections
from vitreous.report.stored_run import read_run

HOSTILE = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>&amp;</style></textarea>${7*7}"
VOID = {"meta", "img", "wbr", "br", "circle", "path", "polygon", "polyline"}


class Reader(HTMLParser):
    """Tags with their attributes, all text, and whether every tag is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words, self.open, self.crossed = "", [], []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.crossed.append(tag)

    def handle_data(self, data: str) -> None:
        self.words += data


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Every name that a user can choose is an attack; methods and metrics are real, since they are resolved."""
    names = {
        "model": f"m{HOSTILE}",
        "target_name": f"t{HOSTILE}",
        "device": HOSTILE,
        "protocol": json.dumps({"x": HOSTILE}),
    }
    rows = []
    for dataset in (f"d{HOSTILE}", f"e{HOSTILE}"):
        scores = {metric: {"genatt": [0.5, 0.6], f"x{HOSTILE}": [0.4, 0.7]} for metric in ("ap", "f1", "positive_auc")}
        rows += [{**one, "image": HOSTILE + one["image"]} for one in rows_of(scores, dataset=dataset, **names)]
        rows += [row(dataset=dataset, image="bad", index=7, target=-1, error=f"lost {HOSTILE}", **names)]
    return put(tmp_path / "run", rows, plan=f"# {HOSTILE}\nmodels = ['x']")


def test_hostile_names_are_escaped(hostile: Path, tmp_path: Path) -> None:
    made = write_report(hostile, tmp_path / "page.html", gallery=2)
    page = Reader(made.page.read_text())

    assert [tag for tag, _ in page.tags].count("script") == 1
    assert not any(tag == "img" for tag, _ in page.tags)
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert page.crossed == []
    assert page.open == []
    assert page.words.count(HOSTILE) > 20
    for path in made.tables:
        assert path.parent == tmp_path / "tables"


def test_missing_images_are_reported_and_the_rest_is_shown(hostile: Path, tmp_path: Path) -> None:
    made = write_report(hostile, tmp_path / "page.html", gallery=2)

    assert len(made.unreached) == 1
    assert made.unreached[0].startswith("the plan of the run cannot be read again")
    assert "<b>Images</b> are left out: the plan of the run cannot be read again" in made.page.read_text()
    assert write_report(hostile, tmp_path / "page.html", gallery=0).unreached == ()


def test_links_lead_somewhere_and_ids_are_unique(hostile: Path, tmp_path: Path) -> None:
    page = Reader(write_report(hostile, tmp_path / "page.html", gallery=0).page.read_text())
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]

    assert len(ids) == len(set(ids)) == 4  # charts have none
    assert sorted(links) == sorted(f"#{one}" for one in ids)


def test_similar_names_get_separate_files(tmp_path: Path) -> None:
    rows = [one for model in ("a/b", "a-b", "…") for one in rows_of({"ap": {"genatt": [0.5]}}, model=model)]
    slugs = list(name_sections(read_run(put(tmp_path, rows)).sections))

    assert len(set(slugs)) == 3
    assert all(set(slug) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") for slug in slugs)


def test_a_run_without_rows_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "run", [])
    with pytest.raises(DataError, match="has no rows yet"):
        write_report(tmp_path / "run", tmp_path / "page.html")


def test_a_page_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "run", rows_of({"ap": {"genatt": [0.5, 0.5]}}))
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        write_report(tmp_path / "run", tmp_path / "file" / "page.html", gallery=0)


# ── a real run ───────────────────────────────────────────────────────────────────────────────────

PLAN = """
models = ["scenes"]
datasets = [{ spec = "scenes:pair?count=2", label = "pairs" }]
methods = ["random", "genatt", "decompx+plus", "decompx+skipplus(start=2)", "decompx+skipplus(start=6)", "decompx+skipplus(start=10)"]
metrics = ["deletion_aopc(ratios=(0.25, 0.5, 0.75))", "insertion_aopc(ratios=(0.25, 0.5, 0.75))", "pointing_game", "pixel_accuracy", "sparseness"]
targets = "pair"
"""


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from vitreous.bench.plan_parser import read_plan
    from vitreous.bench.run_plan import execute
    from vitreous.bench.store import Store

    folder = tmp_path_factory.mktemp("real")
    (folder / "plan.toml").write_text(PLAN)
    with Store(folder / "run") as store:
        execute(read_plan(folder / "plan.toml"), store)
    return folder / "run"


@pytest.mark.slow
def test_a_real_run_makes_a_whole_page(real: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["report", str(real), "--gallery", "2"]) == 0
    said = capsys.readouterr()
    assert "report.html" in said.out
    assert said.err == ""
    text = (real / "report.html").read_text()
    page = Reader(text)

    assert page.crossed == []
    assert page.open == []
    pictures = [attributes["src"] or "" for tag, attributes in page.tags if tag == "img"]
    assert all(one.startswith("data:image/webp;base64,") for one in pictures)
    # gallery 2 × (image + 6), layers 13, two images × two classes × (image + all but random), deletion 2 × (map + 3)
    assert len(pictures) == 14 + 13 + 24 + 8
    assert "http" not in text.replace("http-equiv", "")
    for title in (
        "Strengths",
        "Curves",
        "First layer",
        "Gallery",
        "One method from different layers",
        "Protocol and provenance",
    ):
        assert f"{title}</h" in text
    assert "Computed again for these images, since the run did not store these maps: <code>decompx+" in text
    assert text.count("Computed again") == 1  # the run's own maps were not


def test_the_tables_of_a_real_run_equal_the_summary(real: Path) -> None:
    from vitreous.bench.store import Store
    from vitreous.bench.summary import summarise

    main(["report", str(real), "--gallery", "0"])
    with Store(real) as store:
        known = {(c.metric, e.method): e for c in summarise(store.table()) for e in c.entries}
    lines = list(csv.DictReader((real / "tables" / "all.csv").read_text().splitlines()))

    assert len(lines) == len(known) == 30
    for line in lines:
        entry = known[line["metric"], line["method"]]
        assert (float(line["value"]), float(line["low"]), float(line["high"])) == (entry.value, entry.low, entry.high)
        assert line["rank"] == ("" if entry.rank is None else str(entry.rank))


def test_comparing_a_run_with_itself_shows_no_difference(real: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["compare", str(real), str(real), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)

    assert len(told["changes"]) == 30
    assert {one["verdict"] for one in told["changes"]} == {"the same"}
    assert told["only"] == told["caveats"] == []


def test_data_that_changed_is_not_shown_as_if_it_had_not(real: Path, tmp_path: Path) -> None:
    """The run recorded other pixels, so its maps are not drawn on the changed images."""
    from vitreous.report.map_loader import open_maps

    run = read_run(real)
    easel = open_maps(run, run.sections[0])
    question = run.sections[0].questions[0]
    assert easel.attribution("genatt", question).patches is not None

    def read_stale(question):
        rows = easel.read_maps(question)
        return rows.drop_columns("pixels").append_column("pixels", [["0" * 32] * len(rows)])

    stale = type(easel)(easel.vit, easel.dataset, easel.section, read_stale)
    with pytest.raises(DataError, match="no longer the image that was measured"):
        stale.attribution("genatt", question)


def test_a_stored_map_is_the_map(real: Path) -> None:
    import torch

    from vitreous.front import explain
    from vitreous.report.map_loader import open_maps

    run = read_run(real)
    easel = open_maps(run, run.sections[0])
    question = run.sections[0].questions[1]
    stored = easel.attribution("decompx+plus", question)
    again = explain(easel.vit, easel.image(question), [question.target], "decompx+plus")

    assert easel.remade == []
    assert torch.allclose(stored.patches, again.patches, atol=1e-3 * again.patches.abs().max().item())


def test_the_page_of_a_black_box_shows_its_maps(tmp_path: Path) -> None:
    """A black box has no layers, whose maps a figure shows for other models."""
    fill(
        tmp_path / "run", models=[{"name": "scenes", "black_box": True}], methods=["random"], metrics=["pointing_game"]
    )
    report = write_report(tmp_path / "run", tmp_path / "page.html", gallery=1)

    assert report.unreached == ()
    assert 'alt="map of random"' in report.page.read_text()


WITHOUT_BENCH_PACKAGES = """
import sys
sys.modules |= dict.fromkeys(("cachetools", "pandas", "pyarrow", "pydantic"))
import vitreous.demo
from vitreous.report.page import write_text
from vitreous import maps
from vitreous.core.errors import DataError
try:
    maps.read(sys.argv[1])
except DataError as problem:
    print(problem)
import vitreous.bench.plan_parser
"""


def test_without_the_packages_of_benchmarks_the_demo_writes_its_page_and_others_say_what_to_install(
    tmp_path: Path,
) -> None:
    """One process for all: to start one that imports torch takes longer than the rest."""
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_BENCH_PACKAGES, str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert "pip install 'vitreous[bench]'" in run.stdout  # reading maps, after the imports of the demo
    assert run.stderr.splitlines()[-1].endswith("plans are validated with pydantic: pip install 'vitreous[bench]'")
