"""Where pictures come from and where results go: safe names, whole files or none."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from vitreous.core.errors import DataError

SUFFIXES = (".avif", ".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".png", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
LONGEST = 80  # characters of one part of a name


def gather(given: Sequence[str]) -> list[Path]:
    """Files as they are, all pictures of a folder, all files of a pattern; each once."""
    found: dict[Path, None] = {}
    for one in given:
        found.update(dict.fromkeys(expanded(one)))
    return list(found)


def expanded(one: str) -> list[Path]:
    path = Path(one).expanduser()
    if path.is_dir():
        inside = sorted(p for p in path.iterdir() if p.suffix.lower() in SUFFIXES and p.is_file())
        if not inside:
            raise DataError(f"folder '{one}' holds no pictures ({', '.join(SUFFIXES)})")
        return [p for p in inside if not p.name.startswith(".")]
    if path.exists():
        return [path]
    if not glob.has_magic(one):
        raise DataError(f"no picture at '{one}'; give a file, a folder or a pattern such as 'photos/*.jpg'")
    matches = [Path(p) for p in sorted(glob.glob(str(path), recursive=True))]
    files = [p for p in matches if p.is_file()]
    if not files:
        raise DataError(f"no file matches '{one}'")
    return files


def safe(text: str) -> str:
    """Letters, digits and + @ = _ - . of a text, in a length every file system takes."""
    plain = re.sub(r"[^\w+@=.-]+", "-", text.strip(), flags=re.UNICODE)
    plain = re.sub(r"-+", "-", plain).strip("-.") or "unnamed"
    if len(plain.encode()) <= LONGEST:
        return plain
    return f"{plain.encode()[: LONGEST - 9].decode(errors='ignore')}-{sha256(text.encode()).hexdigest()[:8]}"


class Shelf:
    """A folder that results are put on, each under a name of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._taken: set[str] = set()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise DataError(f"'{folder}' cannot be made a folder for the results: {problem.strerror}") from None

    def claim(self, text: str) -> str:
        """A safe name that nothing else in this run has, also where capitals do not count."""
        name, count = safe(text), 1
        while name.casefold() in self._taken:
            count += 1
            name = f"{safe(text)}-{count}"
        self._taken.add(name.casefold())
        return name

    @contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """A temporary file that takes its name when it is whole, and vanishes when it is not."""
        temporary = self.folder / f".{os.getpid()}-{sha256(name.encode()).hexdigest()[:12]}.part"
        try:
            temporary.touch()
            mode = temporary.stat().st_mode
            yield temporary
            temporary.chmod(mode)  # some writers make a file for its owner alone
            temporary.replace(self.folder / name)
        except OSError as problem:
            raise DataError(f"'{self.folder / name}' cannot be written: {problem.strerror or problem}") from None
        finally:
            temporary.unlink(missing_ok=True)
