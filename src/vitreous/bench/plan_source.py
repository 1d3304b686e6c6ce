"""Source of a plan (file or flags), so that error messages can point to the line or flag."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from vitreous.core.errors import SpecError, VitreousError

FLAGS = {
    "models": "--model",
    "datasets": "--data",
    "methods": "--method",
    "metrics": "--metric",
    **{key: f"--{key.replace('_', '-')}" for key in ("protocol", "images", "seed", "precision", "targets", "question")},
    **{key: f"--{key.replace('_', '-')}" for key in ("device", "batch_size", "slice", "out", "checkpoint")},
}


class Origin:
    """A plan file with its text, or the command-line flags in place of a file.

    Parameters
    ----------
    name
        Path of the file; empty if the plan comes from flags.
    text
        Content of the file.
    flags
        Flag of every entry.
    """

    def __init__(self, name: str = "", text: str = "", flags: Mapping[str, str] | None = None) -> None:
        self.name, self.lines, self.flags = name, text.splitlines(), flags or {}

    def wrong(self, sentence: str, key: str, value: Any = None) -> SpecError:
        """Make a `SpecError` whose message is `sentence`, prefixed with file and line or with the flag of `key`."""
        if not self.name:
            return SpecError(f"{self.flags[key]}: {sentence}" if key in self.flags else sentence)
        line = self.line(key, value)
        return SpecError(f"'{self.name}'{f', line {line}' if line else ''}: {sentence}")

    @contextmanager
    def blame(self, key: str, value: Any = None) -> Iterator[None]:
        """Context manager in which errors of the library become those of `wrong`."""
        try:
            yield
        except VitreousError as problem:
            raise self.wrong(str(problem), key, value) from None

    def line(self, key: str, value: Any = None) -> int | None:
        """Number (from 1) of the line that contains the quoted value, else of the one that sets the key, else None."""
        bare = [line.split("#", 1)[0] if '"' not in line and "'" not in line else line for line in self.lines]
        name = re.escape(key)
        sets = re.compile(rf"^\s*(\[+\s*)?[\"']?{name}[\"']?\s*(=|\]|\.)|[{{,]\s*[\"']?{name}[\"']?\s*=")
        setting_lines = [n for n, line in enumerate(bare, 1) if sets.search(line)]
        if isinstance(value, str):
            quoted = [n for n, line in enumerate(bare, 1) if f'"{value}"' in line or f"'{value}'" in line]
            behind = [n for n in quoted if not setting_lines or n >= setting_lines[0]]
            if behind or quoted:
                return (behind or quoted)[0]
        return setting_lines[0] if setting_lines else None


def suggest(word: str, candidates: Sequence[str]) -> str:
    """Suggest the closest known word, or list all of them."""
    close = get_close_matches(word, candidates, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(candidates)}"


def parse_fraction(text: str, name: str) -> tuple[int, int]:
    """Parse "i/n", such as "2/8" for the second of eight; `name` says in errors what it is.

    Raises
    ------
    SpecError
        If the text does not have this form with 1 ≤ i ≤ n.
    """
    number, slash, count = text.partition("/")
    if not (slash and number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise SpecError(f"{name} {text!r} is not understood; write i/n with i from 1 to n, for example 2/8")
    return int(number), int(count)
