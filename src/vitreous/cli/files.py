"""Find images and write results: safe file names, and atomic writing."""

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
LONGEST = 80  # bytes of one part of a file name


def gather_images(patterns: Sequence[str]) -> list[Path]:
    """Files, images in folders and files that match patterns, each once."""
    return list(dict.fromkeys(path for source in patterns for path in expand_pattern(source)))


def expand_pattern(source: str) -> list[Path]:
    path = Path(source).expanduser()
    if path.is_dir():
        visible = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
        images = [p for p in visible if p.suffix.lower() in SUFFIXES]
        if not images:
            raise DataError(f"folder '{source}' holds no images ({', '.join(SUFFIXES)})")
        return images
    if path.exists():
        return [path]
    if not glob.has_magic(source):
        raise DataError(f"no image at '{source}'; give a file, a folder or a pattern such as 'photos/*.jpg'")
    matches = [Path(p) for p in sorted(glob.glob(str(path), recursive=True))]
    files = [p for p in matches if p.is_file()]
    if not files:
        raise DataError(f"no file matches '{source}'")
    return files


def make_safe_name(text: str) -> str:
    """Make a text safe as a file name: keep letters, digits and + @ = _ - . and limit its length."""
    plain = re.sub(r"[^\w+@=.-]+", "-", text.strip(), flags=re.UNICODE)
    plain = re.sub(r"-+", "-", plain).strip("-.") or "unnamed"
    if len(plain.encode()) <= LONGEST:
        return plain
    return f"{plain.encode()[: LONGEST - 9].decode(errors='ignore')}-{sha256(text.encode()).hexdigest()[:8]}"


class OutputFolder:
    """A folder for results in which every result has a unique name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._taken: set[str] = set()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise DataError(f"'{folder}' cannot be made a folder for the results: {problem.strerror}") from None

    def claim(self, text: str) -> str:
        """Reserve a unique safe name; names that differ only in case count as equal."""
        name, count = make_safe_name(text), 1
        while name.casefold() in self._taken:
            count += 1
            name = f"{make_safe_name(text)}-{count}"
        self._taken.add(name.casefold())
        return name

    @contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """Context manager with a temporary file that is renamed when the block ends, and removed if it fails."""
        temporary = self.folder / f".{os.getpid()}-{sha256(name.encode()).hexdigest()[:12]}.part"
        try:
            temporary.touch()
            mode = temporary.stat().st_mode
            yield temporary
            temporary.chmod(mode)  # some writers restrict the file to its owner
            temporary.replace(self.folder / name)
        except OSError as problem:
            raise DataError(f"'{self.folder / name}' cannot be written: {problem.strerror or problem}") from None
        finally:
            temporary.unlink(missing_ok=True)
