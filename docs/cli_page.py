"""Writes docs/cli.md from the help of the command line; `--check` tests whether it is up to date.

python docs/cli_page.py [--check]
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).with_name("cli.md")

HEAD = """# Command line

Written by `python docs/cli_page.py` from the commands' own help.

| exit code | |
|---|---|
| 0 | done |
| 1 | some images or a contract test failed; the others are done |
| 2 | invalid request; the reason is printed on stderr in one line |
| 70 | internal error; `VITREOUS_DEBUG=1` shows the traceback |
| 129, 130, 143 | stopped by SIGHUP, SIGINT (Ctrl-C) or SIGTERM; finished results are kept |
| 141 | the program that reads the output has ended, as `head` does |

Colours and progress bars are shown in terminals only; otherwise `check`, `bench` and `map` print plain lines of progress on stderr. A `bench` or `map` that is
stopped prints how many results are stored and the command that continues the run. `vitreous --install-completion` installs completion of verbs and options for your shell.
"""


def help_of(*words: str) -> str:
    """Help of a command, as in a terminal of 100 columns without colours."""
    plain = {
        **os.environ,
        "COLUMNS": "100",
        "TERMINAL_WIDTH": "100",
        "NO_COLOR": "1",
        "TERM": "dumb",
        "PYTHONIOENCODING": "utf-8",
    }
    help_text = subprocess.run(
        [sys.executable, "-m", "vitreous", *words, "--help"], env=plain, capture_output=True, text=True, check=True
    ).stdout
    return "\n".join(line.rstrip() for line in help_text.strip().splitlines())


def page() -> str:
    from vitreous.cli.main import VERBS

    parts = [HEAD, f"```text\n{help_of()}\n```\n"]
    parts += [f"## vitreous {verb}\n\n```text\n{help_of(verb)}\n```\n" for verb in VERBS]
    return "\n".join(parts)


if __name__ == "__main__":
    text = page()
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text() == text else "docs/cli.md is out of date; run python docs/cli_page.py")
    PAGE.write_text(text)
