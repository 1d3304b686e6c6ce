"""Tables in four formats, with names that contain markup of each."""

from __future__ import annotations

import csv
import re
from io import StringIO
from math import nan
from pathlib import Path

import pytest

import vitreous
from tests.report.stores import put, row, rows_of
from tests.report.test_stats import standings_of
from vitreous.report import tables, write_report
from vitreous.report.main_table import count_passes, make_main_table, tabulate_all
from vitreous.report.page import name_sections
from vitreous.report.paper_tables import make_paper_tables
from vitreous.report.rendering import load_environment
from vitreous.report.stored_run import read_run
from vitreous.report.tables import ReportTable, TableCell, TableHead, place_values

HOSTILE = "=<script>alert(1)</script>|`&\\$_%#{}~^\"'"


def render_macro(name: str, value: ReportTable | TableCell) -> str:
    """Render one macro of `macros.html`."""
    return str(getattr(load_environment().get_template("macros.html").module, name)(value))


def table(name: str = "genatt") -> ReportTable:
    cells = [
        TableCell("0.5", 0.5, "[0.4, 0.6]", 1),
        TableCell("0.4", 0.4, place=2, tied=True),
        TableCell("–", nan, aside="2 of 3 undefined"),
    ]
    heads = [TableHead("ap", True, True), TableHead(name, False, True), TableHead("entropy")]
    return ReportTable("t", name, heads, [(name, cells)], groups=[("left", 1), (name, 2)], notes=[name])


def test_equal_values_share_a_place_and_after_two_best_there_is_no_second() -> None:
    cases = {
        "after two best values there is no second best": ([0.1, 0.3, 0.3, nan, 0.2], True, [None, 1, 1, None, None]),
        "lower is better": ([0.1, 0.3, 0.3, nan, 0.2], False, [1, None, None, None, 2]),
        "two second best": ([0.3, 0.2, 0.2, 0.1], True, [1, 2, 2, None]),
        "seven best of eight": ([1.0] * 7 + [0.0], True, [1] * 7 + [None]),
        "all equal": ([0.5, 0.5, nan], True, [None, None, None]),
        "one value": ([0.5], True, [None]),
        "written equally": ([0.5001, 0.4999, 0.4], True, [1, 1, None]),
        "neither direction is better": ([0.1, 0.3], None, [None, None]),
    }
    for name, (values, higher, places) in cases.items():
        assert place_values(values, 3, higher) == places, name


def test_places_do_not_cross_scores() -> None:
    scores = ["logit", "logit", "probability", "probability", ""]
    assert place_values([0.4, 0.3, 0.9, 0.8, 0.1], 3, True, scores) == [1, 2, 1, 2, None]
    # a map for any class is compared with both, and has the worse of its places
    assert place_values([0.4, 0.3, 0.9, 0.8, 0.85], 3, True, scores) == [2, None, 1, None, 2]
    assert place_values([0.4, 0.9], 3, True, ["logit", "probability"]) == [None, None]


def test_latex_has_every_character_and_its_notes_in_the_caption() -> None:
    text = "f∘g ≤ Σᵢ αβ½ → ±1° “x” … \N{HANGUL SYLLABLE GA}"
    assert tables.escape_latex(text) == (
        r"f$\circ$g $\leq$ $\Sigma$i $\alpha$$\beta$½ $\to$ $\pm$1$^{\circ}$ ``x'' \ldots{} [U+AC00]"
    )
    made = ReportTable(
        "t", "ViT-B on val", [TableHead("ap")], [("a", [TableCell("1")])], notes=["n_1"], about={"model": "x"}
    )
    assert r"\caption{ViT-B on val. Model: x. n\_1}" in tables.to_latex(made)
    assert tables.to_latex(made).endswith("\\end{tabular}\n\\end{table}\n")
    assert tables.to_csv(made) == "method,ap,about_model\na,1,x\n"
    assert tables.to_markdown(made).endswith("\n- Model: x.\n- n\\_1\n")


def test_markdown_latex_and_csv_have_the_same_content() -> None:
    made = table()

    assert "<b>0.5</b><small>[0.4, 0.6]</small>" in render_macro("table", made)
    assert "<u>0.4</u>" in render_macro("table", made)
    assert 'data-v="0.5"' in render_macro("table", made)
    assert 'data-v="nan"' not in render_macro("table", made)
    assert "| **0.5** \\[0.4, 0.6\\] | <u>0.4</u> ≈ | – 2 of 3 undefined |" in tables.to_markdown(made)
    assert r"\textbf{0.5} {\scriptsize [0.4, 0.6]} & \underline{0.4}$^{\approx}$ & --" in tables.to_latex(made)
    assert r" & \multicolumn{1}{c}{left} & \multicolumn{2}{c}{genatt} \\" in tables.to_latex(made)
    assert tables.to_csv(made).splitlines()[1] == "genatt,0.5,0.4,"


def test_hostile_names_are_escaped() -> None:
    made = table(HOSTILE)
    page, text, tex, cells = (
        render_macro("table", made),
        tables.to_markdown(made),
        tables.to_latex(made),
        tables.to_csv(made),
    )

    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "<script" not in text.replace("\\<script", "").replace("`=<script>", "")  # escaped, or inside a code span
    assert all(line.count(" | ") == 3 for line in text.splitlines() if line.startswith("|") and "--" not in line)
    body = [line for line in tex.splitlines() if not line.startswith("%")]
    assert not any(bad in line for line in body for bad in (r"alert(1)</script>|`&\$_", "_{", "~^"))
    assert r"\textbackslash{}\$\_\%\#\{\}\textasciitilde{}\textasciicircum{}" in tex
    assert list(csv.reader(StringIO(cells)))[1][0] == "'" + HOSTILE  # a spreadsheet does not compute it


REDUCED_PLAN = """
reduced = "2 images of val instead of all; ViT-B is toy"
[[models]]
name = "timm:toy"
label = "m"
checkpoint = "/weights/toy.pth"
[[datasets]]
spec = "imagenet:/data/val"
label = "d"
"""


def test_every_format_names_model_data_images_and_how_the_run_is_reduced(tmp_path: Path) -> None:
    rows = rows_of({"pointing_game": {"genatt": [0.5, 0.5], "ixg": [0.4, 0.4]}})
    written = write_report(put(tmp_path / "run", rows, REDUCED_PLAN), tmp_path / "report.html", gallery=0)

    paths = [written.page, *written.tables]
    assert {path.suffix for path in paths} == {".html", ".md", ".tex", ".csv"}
    for path in paths:
        text = re.sub(r"<[^>]*>", "", path.read_text()).replace("\\", "")
        assert "m is timm:toy with toy.pth" in text, path
        assert "d is imagenet:val, 2 images" in text, path
        assert "not the published evaluation: 2 images of val instead of all; ViT-B is toy" in text, path


def test_a_newline_in_a_name_breaks_no_table() -> None:
    made = table("two\nlines")

    assert len([line for line in tables.to_markdown(made).splitlines() if line.startswith("|")]) == 3
    assert r"\texttt{two lines}" in tables.to_latex(made)


# ── cost ─────────────────────────────────────────────────────────────────────────────────────────


def test_passes_are_evaluated_from_the_options() -> None:
    assert count_passes("genatt") == (1, 1)
    assert count_passes("tis(masks=256)") == (257, 0)
    assert count_passes("occlusion") == ("1 + patches", 0)
    assert count_passes("vitcx") == ("1 + 2 * clusters", 0)
    assert count_passes("no such method") == ("?", "?")


def test_passes_are_evaluated_from_the_sizes_of_the_model() -> None:
    vit = vitreous.load("scenes")
    assert count_passes("occlusion", vit) == (197, 0)
    assert count_passes("smoothgrad(samples=8)+plus", vit) == (53, 52)  # 12 layers, 6.5 passes for each sample
    assert count_passes("tam", vit) == (21, 2)  # 20 steps back to the last of 12 blocks
    box = vitreous.wrap(vit.module, black_box=True)
    assert count_passes("occlusion", box) == (197, 0)  # 14 x 14 squares, although every pixel has a score


# ── the main table ───────────────────────────────────────────────────────────────────────────────


def test_the_main_table_shows_figures_intervals_ranks_ties_undefined_and_cost(tmp_path: Path) -> None:
    rows = rows_of({"ap": {"genatt": [0.8, 0.9, nan], "ixg": [0.8, 0.8, 0.8], "rollout": [0.1, 0.2, 0.1]}})
    rows += [row(metric="ap", method="genatt", image="bad", index=9, target=-1, error="'bad' is damaged")]
    block = read_run(put(tmp_path, rows)).sections[0]
    made = make_main_table(block, standings_of(block), "slug")
    cells = dict(made.rows)

    assert [head.title for head in made.heads] == ["ap ↑", "mean rank ↓", "cost", "score"]
    assert (cells["genatt"][0].text, cells["genatt"][0].place) == ("0.850", 1)
    assert cells["genatt"][0].aside == "rank 1 · 1 of 3 undefined · 1 failed"
    assert (cells["ixg"][0].place, cells["ixg"][0].tied, cells["rollout"][0].tied) == (2, True, False)
    assert cells["ixg"][0].span == "[0.800, 0.800]"
    assert (cells["genatt"][2].text, cells["genatt"][2].aside) == ("20 ms", "1 fwd, 1 bwd")
    assert cells["rollout"][2].aside == "1 fwd, 0 bwd"
    assert [own[3].text for own in cells.values()] == ["logit", "logit", "any"]
    notes = " ".join(made.notes)
    assert "3 images" in notes
    assert "1 row failed: 'bad' is damaged" in notes
    assert "undefined on questions on which others are not" in notes


def test_the_tidy_table_is_complete_and_in_full_precision(tmp_path: Path) -> None:
    rows = rows_of(
        {"ap": {"genatt": [1 / 3, 1 / 3], "ixg": [nan, nan]}, "sparseness": {"genatt": [0.5, 0.5], "ixg": [0.25, 0.25]}}
    )
    block = read_run(put(tmp_path, rows)).sections[0]
    lines = list(csv.DictReader(StringIO(tabulate_all([(block, standings_of(block))]))))

    assert len(lines) == 4
    assert float(lines[0]["value"]) == 1 / 3
    assert (lines[0]["rank"], lines[0]["direction"], lines[0]["forwards"]) == ("1", "↑", "1")
    ixg = next(one for one in lines if (one["method"], one["metric"]) == ("ixg", "ap"))
    assert (ixg["value"], ixg["rank"], ixg["undefined"]) == ("", "", "2")
    assert next(one for one in lines if one["metric"] == "sparseness")["direction"] == ""


MIXED = {"genatt": "logit", "ixg": "logit", "temper": "probability", "rise": "probability", "random": "logit"}


def mixed_rows() -> list:
    """Methods that explain different scores; `temper` is best by all figures."""
    values = {"genatt": 0.5, "ixg": 0.4, "temper": 0.9, "rise": 0.3, "random": 0.1}
    return [one for name, score in MIXED.items() for one in rows_of({"ap": {name: [values[name]] * 2}}, question=score)]


def test_methods_of_different_scores_have_separate_tables_and_are_not_ranked_together(tmp_path: Path) -> None:
    run = read_run(put(tmp_path, mixed_rows()))
    first, second = run.sections

    assert [section.title for section in run.sections] == ["m on d, score: logit", "m on d, score: probability"]
    assert list(name_sections(run.sections)) == ["m-d-logit", "m-d-probability"]
    assert (first.methods, second.methods) == (("genatt", "ixg", "random"), ("temper", "rise", "random"))
    made = [make_main_table(section, standings_of(section), "t") for section in run.sections]
    places = [{name: (cells[0].place, cells[-1].text) for name, cells in table.rows} for table in made]
    assert places == [
        {"genatt": (1, "logit"), "ixg": (2, "logit"), "random": (None, "any")},
        {"temper": (1, "probability"), "rise": (2, "probability"), "random": (None, "any")},
    ]
    assert "Methods of the run that explain probability have a table of their own" in " ".join(made[0].notes)
    lines = list(csv.DictReader(StringIO(tabulate_all([(section, standings_of(section)) for section in run.sections]))))
    assert [(one["method"], one["score"], one["ranked_with"], one["rank"]) for one in lines][2:4] == [
        ("random", "any", "logit", "3"), ("temper", "probability", "probability", "1"),
    ]  # fmt: skip
    (whole,) = run.whole_sections
    assert whole.scores == ("logit", "probability")


def test_a_published_table_of_several_scores_says_so_and_marks_the_best_of_each(tmp_path: Path) -> None:
    rows = [{**one, "metric": "pointing_game"} for one in mixed_rows()]
    table = told(tmp_path, rows)["TIS, table 3"][0].table

    assert {name.split(": ")[-1]: (cells[0].place, cells[1].text) for name, cells in table.rows} == {
        "genatt": (1, "logit"), "ixg": (2, "logit"), "temper": (1, "probability"), "rise": (2, "probability"),
        "random": (None, "any"),
    }  # fmt: skip
    assert table.notes[0].startswith("The rows explain different scores, logit, probability, and are not comparable")
    assert (
        "The rows explain different scores, logit, probability" in tables.to_latex(table).split(r"\begin{tabular}")[0]
    )
    assert "different scores" in tables.to_markdown(table)
    assert tables.to_csv(table).splitlines()[0].endswith(",score")


# ── the papers ───────────────────────────────────────────────────────────────────────────────────


def told(folder: Path, rows: list) -> dict[str, list]:
    found: dict[str, list] = {}
    for one in make_paper_tables(name_sections(read_run(put(folder, rows)).whole_sections)):
        found.setdefault(one.title.split(":")[0], []).append(one)
    return found


def test_the_tables_of_tis(tmp_path: Path) -> None:
    baselines = ("mean", "blur", "black", "random")
    scores = {f"insertion(baseline={one!r})": {"tis": [0.5, 0.7], "rise": [0.4, 0.4]} for one in baselines}
    scores |= {f"deletion(baseline={one!r})": {"tis": [0.1, 0.1], "rise": [0.3, 0.1]} for one in baselines}
    scores |= {"pointing_game": {"tis": [1.0, 1.0], "rise": [1.0, 0.0]}}
    rows = [*rows_of(scores), *rows_of({"pointing_game": {"tis": [0.0, 1.0], "rise": [1.0, 1.0]}}, model="other")]
    found = told(tmp_path, rows)

    table = found["TIS, tables 1–2"][0].table
    assert table.groups == [("Insertion", 4), ("Deletion", 4), ("Insertion - Deletion", 4), ("", 1)]
    assert [head.title for head in table.heads[:4]] == ["Mean ↑", "Blur ↑", "Black ↑", "Rand ↑"]
    tis, rise = (cells for _, cells in table.rows)
    assert [cell.text for cell in tis[::4]] == ["0.60", "0.10", "0.50", "logit"]
    assert [cell.place for cell in rise[::4]] == [2, 2, 2, None]
    assert found["TIS, tables 1–2"][1].table is None  # of the other model
    points = found["TIS, table 3"][0].table
    assert [head.name for head in points.heads] == ["m", "other", "score"]
    texts = [["1.000", "0.500", "logit"], ["0.500", "1.000", "logit"]]
    assert [[cell.text for cell in cells] for _, cells in points.rows] == texts
    assert found["TIS, table 4"][0].missing == "d: the run lacks max_sensitivity of m, max_sensitivity of other"


def test_the_tables_of_tokentm(tmp_path: Path) -> None:
    methods = ("tokentm(preset='af')", "tokentm")
    rows = []
    for place, dataset in enumerate(("cifar10", "cifar100")):
        scores = {
            metric: {method: [0.5 + 0.1 * at + 0.01 * place] * 2 for at, method in enumerate(methods)}
            for metric in ("negative_auc", "positive_auc", "aopc", "lodds", "map_two_channel", "ap")
        }
        rows += rows_of(scores, dataset=dataset)
    rows += rows_of(
        {"positive_auc": {method: [0.25, 0.25] for method in methods}}, dataset="cifar10", role="label", target=5
    )
    found = told(tmp_path, rows)

    first = found["TokenTM, table 1"][0].table
    # what both datasets have
    assert [head.title for head in first.heads] == ["Neg. (Pred.) ↑", "Pos. (Pred.) ↓", "score"]
    full = dict(first.rows)["Ours: tokentm"]
    assert render_macro("cell", full[0]) == '<td data-v="60.0"><b>60.00</b> / <b>61.00</b></td>'
    assert render_macro("cell", full[1]) == '<td data-v="60.0"><u>60.00</u> / <u>61.00</u></td>'
    assert "positive_auc of the label" in " ".join(first.notes)

    second = found["TokenTM, table 2"][0].table
    assert second.groups == [("Localization Ability", 1), ("Impact on Accuracy", 3), ("", 1)]
    assert dict(second.rows)["Ours: tokentm"][-2].text == "25.00"  # the label's rows alone
    assert dict(second.rows)["Ours: tokentm"][-3].text == "60.00"
    assert "pixel_accuracy" in " ".join(second.notes)

    third = found["TokenTM, table 3"][0].table
    assert third.groups == [("AOPC", 1), ("LOdds", 1), ("", 1)]
    fourth = found["TokenTM, table 4"][0].table
    assert [name for name, _ in fourth.rows] == ["+ AF", "+ AF + L + NECC"]
    assert fourth.groups == [("Segmentation", 1), ("Perturbation Test", 2), ("", 1)]


def test_a_run_without_their_numbers_gets_a_line_each(tmp_path: Path) -> None:
    found = told(tmp_path, rows_of({"ap": {"genatt": [0.5, 0.5]}}))

    assert all(one.table is None and one.missing for several in found.values() for one in several)
    assert len(found) == 9
    assert found["TokenTM, table 1"][0].missing == "m was measured on one dataset; it needs two"


def test_shares_that_are_percent_already_are_not_multiplied(tmp_path: Path) -> None:
    scores = {"positive_auc(show='percent')": {"a": [40.0, 60.0]}, "map_two_channel": {"a": [0.5, 0.5]}}
    found = told(tmp_path, rows_of(scores))["TokenTM, table 2"][0].table

    assert [cell.text for cell in found.rows[0][1]] == ["50.00", "50.00", "logit"]


def test_a_number_that_is_too_small_for_its_digits_is_not_zero() -> None:
    from vitreous.report.formatting import format_number as number
    from vitreous.report.formatting import format_seconds as seconds

    assert [number(x) for x in (0.0, 1e-5, -0.25, nan, float("inf"))] == ["0.000", "1e−05", "−0.250", "–", "∞"]
    assert [seconds(x) for x in (1.5, 0.02, 3e-6, nan)] == ["1.5 s", "20 ms", "3 µs", "–"]


@pytest.mark.slow
@pytest.mark.parametrize(("text", "lines"), [("a_b", ["a_b"]), ("deletion_accuracy", ["deletion_", "accuracy"])])
def test_long_names_break_at_their_joints(text: str, lines: list[str]) -> None:
    from vitreous.report.formatting import wrap_spec as broken

    assert broken(text, 12) == lines
