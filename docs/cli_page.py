"""Writes docs/cli.md from the command line's own help; `--check` says whether it still is what the help says.

python docs/cli_page.py [--check]
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).with_name("cli.md")

HEAD = r"""# Command line

Written by `python docs/cli_page.py` from the commands' own help.

| exit code | |
|---|---|
| 0 | done |
| 1 | some images failed or a contract test did; the rest is done |
| 2 | the request cannot be met; one sentence on stderr says why |
| 70 | a fault of the program; `VITREOUS_DEBUG=1` shows where |
| 129, 130, 143 | stopped by SIGHUP, SIGINT (Ctrl-C) or SIGTERM; what was finished stays |
| 141 | the reader of the output is gone, as in `vitreous methods \| head` |

Colours and bars are for terminals only; `check`, `bench` and `map` print plain lines of progress on stderr elsewhere. A `bench` or `map` that is
stopped says what it has kept and the command that goes on from there. `vitreous --install-completion` teaches your shell the verbs and options.
"""


def help_of(*words: str) -> str:
    """What a command says of itself, as a terminal of 100 columns without colours shows it."""
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
        sys.exit(
            0 if PAGE.read_text() == text else "docs/cli.md is not what the help says; run python docs/cli_page.py"
        )
    PAGE.write_text(text)
