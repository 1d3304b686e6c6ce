"""Writes a page that a script generates, or checks that it is up to date."""

from __future__ import annotations

import sys
from pathlib import Path


def write_or_check(page: Path, text: str) -> None:
    """Write the page; with `--check` on the command line, exit with 0 if it has this text, and else with a message."""
    if "--check" in sys.argv:
        is_current = page.exists() and page.read_text() == text
        script = f"docs/{Path(sys.argv[0]).name}"
        sys.exit(0 if is_current else f"docs/{page.name} is out of date; run python {script}")
    page.write_text(text)
