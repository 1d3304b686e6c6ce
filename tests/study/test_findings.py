"""Numbers of the study that other pages quote agree with the results."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import vitreous
from vitreous.core.defaults import DEFAULT_METHOD

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_pages_and_quoted_numbers_agree_with_the_results():
    told = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "study" / "make.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (told.returncode, told.stdout.strip()) == (0, "pages and results agree"), told.stderr
    assert "1.2 %" in (ROOT / "README.md").read_text(encoding="utf-8")  # the slot is there


def test_the_default_method_is_the_recommended_one():
    default = inspect.signature(vitreous.explain).parameters["method"].default
    assert f"Start with `{default}`" in (ROOT / "docs" / "how-to" / "which-method.md").read_text(encoding="utf-8")
    assert default == DEFAULT_METHOD
