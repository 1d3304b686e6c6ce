"""The command line: one-line errors, complete files, and no import of torch before it is needed."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.cases import each
from vitreous.cli import results
from vitreous.cli.catalogue import look_up
from vitreous.cli.main import main
from vitreous.core.errors import Caveat, SpecError
from vitreous.methods.attribution import Attribution

TINY = ["--model", "timm:vit_tiny_patch16_224", "--no-pretrained"]
for setting in ("depth=2", "embed_dim=48", "num_heads=3", "img_size=64", "num_classes=7"):
    TINY += ["--model-arg", setting]


def picture(path: Path, width: int = 96, height: int = 64) -> str:
    y, x = np.mgrid[0:height, 0:width]
    Image.fromarray(np.stack([x % 256, y % 256, (x + y) % 256], -1).astype(np.uint8)).save(path)
    return str(path)


@pytest.fixture(autouse=True)
def nobody_debugs(monkeypatch):
    monkeypatch.delenv("VITREOUS_DEBUG", raising=False)


# ── without torch ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_help_and_listings_do_not_import_torch():
    program = """
        import sys, time
        from vitreous.cli.main import main
        for line in ([], ["--help"], ["--version"], ["explain", "--help"], ["methods"], ["methods", "genatt", "--json"], ["models"]):
            assert main(line) == 0, line
        heavy = {"torch", "timm", "numpy", "matplotlib", "PIL"} & set(sys.modules)
        assert not heavy, heavy
        assert time.process_time() < 2, time.process_time()
    """

    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "vitreous 0." in done.stdout
    assert "\x1b" not in done.stdout  # no colours in a pipe


def test_python_dash_m_is_the_same_program():
    done = subprocess.run([sys.executable, "-m", "vitreous", "explian"], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: no command 'explian'; did you mean 'explain'?\n"


def test_methods_are_listed_with_their_facts(capsys):
    assert main(["methods"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["method", "needs", "class-specific", "signed", "complete", "cost", "fold", "paper"]
    assert any(line.split()[:5] == ["genatt", "ViT", "yes", "–", "–"] for line in lines)
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize("name", ["genatt", "GAE", "genatt@libra+plus", " Chefer2 "])
def test_a_method_is_found_by_its_names_and_specs(name, capsys):
    assert main(["methods", name, "--json"]) == 0

    assert json.loads(capsys.readouterr().out)["name"] == "genatt"


def test_a_paper_name_with_a_plus_is_not_a_fold(capsys):
    main(["methods", "GradCAM++", "--json"])

    assert json.loads(capsys.readouterr().out)["name"] == "gradcampp"


def test_one_method_shows_options_presets_and_aliases(capsys):
    main(["methods", "tokentm"])

    text = capsys.readouterr().out
    for expected in ("vtranm", "preset='af'", "value_bias=False", "rollout", "1 fwd, 1 bwd"):
        assert expected in text


def test_an_unknown_method_gets_a_suggestion():
    with pytest.raises(SpecError, match="no method 'genat'; did you mean 'genatt'"):
        look_up("method", "genat")


def test_models_as_json_are_a_list(capsys):
    assert main(["models", "--json"]) == 0

    assert {"family", "example", "notes"} <= set(json.loads(capsys.readouterr().out)[0])


# ── explain ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_explain_writes_overlays_a_sheet_and_maps(tmp_path, capsys):
    file, out = picture(tmp_path / "a photo.png"), tmp_path / "out"
    chosen = ["--target", "2", "--target", "5", "--target", "2", "--method", "decompx+skipplus", "--method", "GAE"]

    assert main(["explain", file, *TINY, *chosen, "--method", "genatt", "--out", str(out)]) == 0

    said = capsys.readouterr()
    assert sorted(path.name for path in out.iterdir()) == [
        "a-photo.class-2.decompx+skipplus.png",
        "a-photo.class-2.genatt.png",
        "a-photo.class-5.decompx+skipplus.png",
        "a-photo.class-5.genatt.png",
        "a-photo.decompx+skipplus.safetensors",
        "a-photo.genatt.safetensors",
        "a-photo.sheet.png",
    ]
    for path in out.glob("*.png"):
        Image.open(path).verify()
    raw = Attribution.load(out / "a-photo.genatt.safetensors")
    assert (raw.targets.tolist(), raw.images) == ([2, 5], None)
    assert main(["explain", file, *TINY, "--method", "genatt", "--with-images", "--out", str(tmp_path / "with")]) == 0
    assert Attribution.load(tmp_path / "with" / "a-photo.genatt.safetensors").images.shape[0] == 1
    assert said.out.count("class ") >= 5 + 1  # the five most likely classes, under a heading, and the requested one
    assert "probability" in said.out
    assert str(out / "a-photo.sheet.png") in said.out
    assert said.err == ""


@pytest.mark.slow
@pytest.mark.parametrize(("flags", "shared"), [([], True), (["--shared-scale"], True), (["--own-scale"], False)])
def test_classes_of_an_image_share_a_scale_unless_each_map_has_its_own(tmp_path, monkeypatch, flags, shared):
    drawn = []
    for name in ("figure", "sheet"):
        draw = getattr(results, name)
        monkeypatch.setattr(
            results, name, lambda *given, draw=draw, **options: drawn.append(options) or draw(*given, **options)
        )

    file = picture(tmp_path / "x.png")
    targets = ["--target", "2", "--target", "5"]
    assert main(["explain", file, *TINY, *targets, *flags, "--method", "genatt", "--out", str(tmp_path / "o")]) == 0

    assert [options["shared_scale"] for options in drawn] == [shared] * 3  # two overlays and a sheet
    assert [options.get("rows") for options in drawn] == [[0], [1], None]


def test_json_is_one_document_and_nothing_else(tmp_path, capsys):
    file = picture(tmp_path / "x.png")

    assert main(["explain", file, *TINY, "--question", "margin", "--out", str(tmp_path / "o"), "--json"]) == 0

    told = json.loads(capsys.readouterr().out)
    (one,) = told["images"]
    assert [len(one["top"]), told["failed"]] == [5, []]
    assert sum(entry["probability"] for entry in one["top"]) <= 1
    assert one["explained"][0]["index"] == one["top"][0]["index"]
    assert one["provenance"]["temper"]["question"] == "margin"
    files = [one["sheet"], *one["maps"].values(), *(entry["overlay"] for entry in one["explained"])]
    assert all(Path(path).is_file() for path in files)


@pytest.mark.slow
def test_a_single_output_is_a_value(tmp_path, capsys):
    arguments = [*TINY, "--model-arg", "num_classes=1", "--out", str(tmp_path / "o")]

    assert main(["explain", picture(tmp_path / "x.png"), *arguments, "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["images"]
    (entry,) = one["top"]
    assert (entry["class"], entry["index"], entry["probability"]) == ("output", 0, None)
    assert entry["value"] == pytest.approx(one["explained"][0]["score"])
    assert main(["explain", picture(tmp_path / "y.png"), *arguments]) == 0
    printed = capsys.readouterr().out
    assert "value" in printed
    assert "%" not in printed


@pytest.mark.slow
def test_a_binary_output_is_two_classes(tmp_path, capsys):
    declared = ["--model-arg", "num_classes=1", "--model-arg", "outputs=binary"]
    arguments = [*TINY, *declared, "--target", "0", "--target", "1", "--json"]

    assert main(["explain", picture(tmp_path / "x.png"), *arguments, "--out", str(tmp_path / "o")]) == 0

    (one,) = json.loads(capsys.readouterr().out)["images"]
    assert sum(entry["probability"] for entry in one["top"]) == pytest.approx(1)
    assert len(one["top"]) == 2


@pytest.mark.slow
@each("name", ["a\0b", "a" * 5000, "~nobody-of-this-name/x"])
def test_a_name_that_no_file_can_have_is_refused_in_one_line(name, capsys):
    for words in (["explain", name, "--model", "scenes"], ["bench", "--model", "scenes", "--data", name, "--dry-run"]):
        assert main(words) == 2
        lines = capsys.readouterr().err.splitlines()
        assert lines[-1].startswith("error: ")
        assert "unexpected" not in lines[-1]


def test_a_damaged_image_is_reported_and_the_others_are_explained(tmp_path, capsys):
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("a.png", "c.jpg"):
        picture(folder / name)
    (folder / "b.png").write_bytes(b"not an image")
    (folder / "notes.txt").write_text("no image either")
    out = tmp_path / "out"

    code = main(["explain", str(folder), *TINY, "--method", "random", "--out", str(out)])

    said = capsys.readouterr()
    assert code == 1
    assert said.err.count("\n") == 1
    assert "b.png" in said.err
    assert "2 images explained" in said.out
    assert {"a.sheet.png", "c.sheet.png"} <= {path.name for path in out.iterdir()}


@pytest.mark.slow
def test_images_of_one_name_do_not_overwrite_each_other(tmp_path):
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    files = [picture(tmp_path / "1" / "x.png"), picture(tmp_path / "2" / "X.png")]
    out = tmp_path / "out"

    assert main(["explain", *files, *TINY, "--method", "random", "--target", "0", "--out", str(out)]) == 0

    assert {"x.sheet.png", "X-2.sheet.png"} <= {path.name for path in out.iterdir()}


def test_caveats_are_notes(tmp_path, capsys, monkeypatch):
    def cautious(*arguments, **options):
        for _ in range(2):
            warnings.warn("the map\nis odd", Caveat, stacklevel=2)
        warnings.warn("library noise", UserWarning, stacklevel=2)
        return original(*arguments, **options)

    import vitreous.front

    original = vitreous.front.explain
    monkeypatch.setattr(vitreous.front, "explain", cautious)

    assert (
        main(["explain", picture(tmp_path / "x.png"), *TINY, "--method", "random", "--out", str(tmp_path / "o")]) == 0
    )
    assert capsys.readouterr().err == "note: the map is odd\n"


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--method", "genat"], "no method 'genat'; did you mean 'genatt'?"),
        (["--method", "genatt(varaint='x')"], "did you mean 'variant'?"),
        (["--question", "logits"], "did you mean 'logit'?"),
        (["--target", "7"], "the model has classes 0 to 6"),
        (["--target", "zebra"], "no class named 'zebra'"),
        (["--mode", "cubic"], "known: nearest, bilinear, bicubic"),
        (["--model-arg", "img_size"], "write KEY=VALUE"),
        (["--model-arg", "device=cpu"], "has an option of its own"),
        (["--model-arg", "no_such_thing=1"], "no_such_thing"),
        (["--model", "timm:vit_tinny_patch16_224"], "did you mean"),
        (["--checkpoint", "nowhere.safetensors"], "no checkpoint at"),
        (["--device", "abacus"], "abacus"),
        (["--modle", "x"], "No such option: --modle"),
    ],
)
def test_errors_of_explain_are_one_line(arguments, expected, tmp_path, capsys):
    code = main(["explain", picture(tmp_path / "x.png"), *TINY, *arguments, "--out", str(tmp_path / "o")])

    said = capsys.readouterr()
    assert code == 2
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert expected in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize("given", ["missing.png", "missing/*.png", "."])
def test_without_images_no_model_is_loaded(given, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert main(["explain", given, *TINY]) == 2

    assert capsys.readouterr().err.startswith("error: ")
    assert not list(tmp_path.iterdir())


def test_results_cannot_go_where_a_file_is(tmp_path, capsys):
    file = picture(tmp_path / "x.png")

    assert main(["explain", file, *TINY, "--out", file]) == 2
    assert "cannot be made a folder" in capsys.readouterr().err


def test_maps_and_the_demo_page_cannot_go_where_a_file_is(tmp_path, capsys, monkeypatch):
    (tmp_path / "out").write_text("")
    monkeypatch.setattr("vitreous.demo.run", lambda *_, **__: [])
    monkeypatch.setattr("vitreous.demo.page", lambda shows: "page")
    maps = ["map", "scenes:single?count=1", "--model", "scenes", "--method", "ixg", "--out", str(tmp_path / "out")]

    assert main(maps) == 2
    assert "cannot be made a folder for maps" in capsys.readouterr().err
    assert main(["demo", "--out", str(tmp_path / "out" / "demo.html")]) == 2
    assert "demo.html' cannot be written" in capsys.readouterr().err


def test_an_internal_error_is_one_line_and_exit_code_70(tmp_path, capsys, monkeypatch):
    def broken(*_):
        raise RuntimeError("the abacus\nfell")

    monkeypatch.setattr(results, "Explainer", broken)
    arguments = ["explain", picture(tmp_path / "x.png"), *TINY, "--out", str(tmp_path / "o")]

    assert main(arguments) == 70
    assert capsys.readouterr().err == (
        "error: unexpected RuntimeError: the abacus; run with VITREOUS_DEBUG=1 for the traceback\n"
    )
    monkeypatch.setenv("VITREOUS_DEBUG", "1")
    assert main(arguments) == 70
    assert "Traceback" in capsys.readouterr().err


def test_an_interruption_leaves_no_partial_files(tmp_path, monkeypatch):
    def interrupted(self, path, **_):
        Path(path).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(Attribution, "save", interrupted)
    out = tmp_path / "o"

    assert main(["explain", picture(tmp_path / "x.png"), *TINY, "--method", "random", "--out", str(out)]) == 130
    assert not [path for path in out.iterdir() if path.suffix != ".png" or path.name.startswith(".")]


# ── a real model ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_maps_of_a_real_model_sit_on_the_zebra_and_on_the_elephant(assets, tmp_path):
    weights = assets / "weights" / "deit_tiny_patch16_224.wvfunc-lnq8.safetensors"
    photograph = assets / "multiclass-samples" / "el3.png"
    model = ["--model", "timm:deit_tiny_patch16_224", "--checkpoint", str(weights)]

    assert main(["explain", str(photograph), *model, "-t", "340", "-t", "African elephant", "-o", str(tmp_path)]) == 0

    zebra, elephant = Attribution.load(tmp_path / "el3.temper.safetensors").maps().clamp(min=0)
    assert zebra[6:, 5:].sum() > 0.75 * zebra.sum()
    assert elephant[2:, :5].sum() > 0.65 * elephant.sum()
    assert {"el3.zebra.temper.png", "el3.African-elephant.temper.png"} <= {p.name for p in tmp_path.iterdir()}
