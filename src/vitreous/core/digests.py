"""Hashes of bytes and files."""

from __future__ import annotations

from hashlib import blake2b, file_digest
from pathlib import Path


def digest(*pieces: bytes, size: int = 16) -> str:
    """Hexadecimal BLAKE2b hash of byte strings; each is prefixed with its length, so that boundaries matter."""
    hashed = blake2b(digest_size=size)
    for piece in pieces:
        hashed.update(len(piece).to_bytes(8, "little"))
        hashed.update(piece)
    return hashed.hexdigest()


def hash_file(path: Path, size: int = 16) -> str:
    """Hexadecimal BLAKE2b hash of the content of a file."""
    with path.open("rb") as file:
        return file_digest(file, lambda: blake2b(digest_size=size)).hexdigest()
