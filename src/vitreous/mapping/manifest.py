"""The manifest of a finished folder of maps: all its files with their numbers of rows and hashes, in `_manifest.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitreous.core.digests import digest
from vitreous.core.errors import DataError
from vitreous.core.sealed_files import put_whole

MANIFEST = "_manifest.json"


def write_manifest(folder: Path, run: str, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the manifest: `files` has images, failed rows, bytes and seal by name."""
    content = {
        "format": "vitreous.manifest/1",
        "run": run,
        "files": {name: dict(files[name]) for name in sorted(files)},
    }
    put_whole(folder / MANIFEST, json.dumps({**content, "digest": hash_content(content)}, indent=1).encode())


def hash_content(content: Mapping[str, Any]) -> str:
    return digest(json.dumps(content, sort_keys=True).encode())


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a folder; None if there is none, as long as the run is not finished.

    Raises
    ------
    DataError
        If it is damaged.
    """
    path = folder / MANIFEST
    try:
        content = json.loads(path.read_bytes())
        stated = content.pop("digest")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        content, stated = {}, ""
    if hash_content(content) != stated:
        raise DataError(f"'{path}' is damaged; repeat `vitreous map` with the same options, and it is written again")
    return content


def check_files(folder: Path, files: Sequence[Path]) -> dict[str, str]:
    """Seal of every file of a finished folder by name; empty if the run is not finished.

    Raises
    ------
    DataError
        If a file that the manifest lists is missing, or the manifest is damaged.
    """
    listed = (read_manifest(folder) or {"files": {}})["files"]
    if missing := sorted(listed.keys() - {file.name for file in files}):
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        images = sum(listed[name]["images"] for name in missing)
        raise DataError(
            f"'{folder / missing[0]}'{others} with {images} images is missing; repeat `vitreous map` with the same options, or "
            f"delete '{MANIFEST}' to read the files that are left"
        )
    return {name: entry["seal"] for name, entry in listed.items()}
