"""`vitreous metrics` and the page of metrics agree with the registry, without torch."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import vitreous
from vitreous import catalogue
from vitreous.cli.catalogue import look_up
from vitreous.cli.main import main
from vitreous.core.errors import SpecError

DOCS = Path(__file__).parents[2] / "docs"


def test_listings_do_not_import_torch():
    program = """
        import sys
        from vitreous.cli.main import main
        for line in (["metrics"], ["metrics", "ap"], ["metrics", "ap", "--json"], ["metrics", "--protocol", "tis"]):
            assert main(line) == 0, line
        heavy = {"torch", "timm", "numpy", "matplotlib", "PIL"} & set(sys.modules)
        assert not heavy, heavy
    """

    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout


def test_the_catalogue_has_every_metric_with_its_facts():
    built = json.loads(json.dumps(catalogue.build_catalogue()["metrics"]))

    assert catalogue.read_catalogue()["metrics"] == built, "run make pages"


def test_metrics_are_listed_with_their_facts(capsys):
    assert main(["metrics"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["metric", "better"]
    assert any(line.split()[:2] == ["deletion_aopc", "more"] for line in lines)
    assert any(line.split()[:2] == ["max_sensitivity", "less"] for line in lines)
    assert any(line.split()[:2] == ["sparseness", "–"] for line in lines)
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize("name", ["ap", "average_precision", " AP ", "ap(ignored='background')", "average-precision"])
def test_a_metric_is_found_by_its_names_and_specs(name, capsys):
    assert main(["metrics", name, "--json"]) == 0

    assert json.loads(capsys.readouterr().out)["name"] == "ap"


def test_one_metric_shows_formula_options_and_presets(capsys):
    main(["metrics", "pointing_game"])

    text = capsys.readouterr().out
    for expected in ("arg max S", "tolerance=0", "preset='tis'", "more is better", "objects or boxes", "zhang2018top"):
        assert expected in text


def test_a_protocol_shows_columns_rows_and_notes(capsys):
    assert main(["metrics", "--protocol", "tokentm"]) == 0
    text = capsys.readouterr().out
    main(["metrics", "--protocol", "tokentm", "--json"])
    told = json.loads(capsys.readouterr().out)

    for expected in (
        "Neg. (GT)",
        "negative_auc(preset='tokentm')",
        "attcam(preset='chefer')",
        "not Grad-CAM on tokens",
    ):
        assert expected in text
    assert told["columns"]["Neg. (GT)"]["explained"] == "label"
    assert told["rows"]["Grad-CAM"] == "attcam(preset='chefer')"


def test_an_unknown_name_gets_a_suggestion(capsys):
    with pytest.raises(SpecError, match="no metric 'mio'; did you mean 'miou'"):
        look_up("metric", "mio")
    assert main(["metrics", "--protocol", "ties"]) == 2
    assert "did you mean 'tis'?" in capsys.readouterr().err
    assert main(["metrics", "ap", "--protocol", "tis"]) == 2


def test_every_metric_has_a_formula_in_one_line_and_a_paper_that_exists():
    import re

    keys = set(re.findall(r"@\w+\{(\w+),", (DOCS / "references.bib").read_text()))
    for facts in vitreous.list_metrics():
        if facts["origin"] == "vitreous":
            assert facts["formula"], facts["name"]
            assert "\n" not in facts["formula"]
            assert facts["paper"] in {"", *keys}


@pytest.mark.slow
def test_the_page_agrees_with_the_registry(monkeypatch):
    script = DOCS / "metrics_page.py"
    monkeypatch.syspath_prepend(str(DOCS))
    monkeypatch.setattr(sys, "argv", [str(script), "--check"])

    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 0
