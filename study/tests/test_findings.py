"""Numbers of the study that other pages quote agree with the results."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import vitreous
from tests.forked import run_script
from vitreous.core.defaults import DEFAULT_METHOD

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_pages_and_quoted_numbers_agree_with_the_results(tmp_path):
    output = tmp_path / "output.txt"
    status = run_script(ROOT / "study" / "make.py", "--check", output=output)
    assert (status, output.read_text(encoding="utf-8").strip()) == (0, "pages and results agree")
    assert "1.2 %" in (ROOT / "README.md").read_text(encoding="utf-8")  # the slot is there


def test_the_default_method_is_the_recommended_one():
    default = inspect.signature(vitreous.explain).parameters["method"].default
    assert f"Start with `{default}`" in (ROOT / "docs" / "how-to" / "which-method.md").read_text(encoding="utf-8")
    assert default == DEFAULT_METHOD
