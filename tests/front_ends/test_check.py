"""`vitreous check` reports passed and failed contract tests, one line each."""

from __future__ import annotations

import json

import pytest

from tests.front_ends.test_cli import TINY
from vitreous.cli.main import main
from vitreous.methods.method import METHODS

LIAR = """
import vitreous

@vitreous.method("liar", fold=vitreous.last, mixing=True, attention=True, signed=True, class_specific=False)
def liar(layer):
    return layer.attention.mean(dim=1)
"""


@pytest.fixture
def liar(tmp_path):
    file = tmp_path / "liar.py"
    file.write_text(LIAR)
    yield file
    METHODS.discard("liar")


@pytest.mark.slow
def test_the_logits_of_a_model_and_every_method_are_checked(capsys):
    code = main(["check", *TINY, "--json"])
    found = json.loads(capsys.readouterr().out)

    assert code == 0
    assert found["model"]["largest logit difference"] < 1e-3
    assert {one["method"] for one in found["methods"]} == set(METHODS)
    assert {one["works"] for one in found["methods"]} == {"yes"}
    noted = {one["method"] for one in found["methods"] if one["note"]}
    assert "vanillagrad" in noted
    assert "decompx" not in noted


def test_a_custom_method_that_breaks_its_contract_is_reported(liar, capsys):
    code = main(["check", "--method", "liar", "--plugin", str(liar)])
    said = capsys.readouterr().out

    assert code == 1
    assert "FAILED" in said
    assert "signed" in said


def test_a_correct_method_passes_the_contract_tests(capsys):
    assert main(["check", "--method", "rawattention"]) == 0
    assert "passed all contract tests" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "nothing to check"),
        (["--method", "genat"], "did you mean 'genatt'"),
        (["--method", "genatt", "--plugin", "missing.py"], "no Python file 'missing.py'"),
        (["--model", "timm:swin_tiny_patch4_windw7_224", "--no-pretrained"], "did you mean"),
    ],
)
def test_invalid_arguments_of_check_are_refused_with_a_message(arguments, sentence, capsys):
    assert main(["check", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert sentence in said
