"""Files that are complete or absent, and that contain a hash of themselves.

A file is sealed if its content has a text of `SEAL_LENGTH` characters, once, in its last bytes: two markers, each with a hash
of the file in which the digits of the hashes are 0. The first is of the bytes from some place on (the footer of a Parquet
file), the second of all bytes.
"""

from __future__ import annotations

import os
import time
from hashlib import blake2b
from pathlib import Path

from vitreous.core.errors import DataError

MARKER = b"vitreous seal "
DIGITS = 32
UNSEALED = (MARKER + b"0" * DIGITS + b" " + b"0" * DIGITS).decode()
CHUNK = 1 << 20


def put_whole(path: Path, data: bytes) -> None:
    """Write a file atomically: after a crash or power failure it is either complete or absent.

    Raises
    ------
    DataError
        If the file cannot be written.
    """
    half = path.with_name(f".{os.getpid()}-{time.time_ns()}.half")
    try:
        with half.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        half.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as problem:
        raise DataError(f"'{path}' cannot be written: {problem.strerror or problem}") from None
    finally:
        half.unlink(missing_ok=True)


def seal(data: bytes, tail: int) -> bytes:
    """Fill in the hashes of a content that contains `UNSEALED`.

    Parameters
    ----------
    data
        The content.
    tail
        Number of bytes at the end that the first hash is of; the text is among them.

    Examples
    --------
    >>> data = seal(b"maps and " + UNSEALED.encode(), len(UNSEALED))
    >>> data[:9], len(data) == 9 + len(UNSEALED)
    (b'maps and ', True)
    """
    start = data.rindex(UNSEALED.encode()) + len(MARKER)
    assert start - len(MARKER) >= len(data) - tail
    hashes = hash_bytes(data[-tail:]), hash_bytes(data)
    return b"".join((data[:start], hashes[0], b" ", hashes[1], data[start + 2 * DIGITS + 1 :]))


def hash_bytes(data: bytes) -> bytes:
    return blake2b(data, digest_size=DIGITS // 2).hexdigest().encode()


def is_intact(path: Path, tail: int, *, whole: bool = True) -> bool | None:
    """Whether a file is what was sealed; None if it has no seal. Memory does not depend on its size.

    Parameters
    ----------
    path, tail
        The file, and the number of bytes at its end that the first hash is of.
    whole
        Whether to check all bytes; by default, otherwise only the last ones.

    Raises
    ------
    OSError
        If the file cannot be read.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - tail))
        end = file.read()
        place = end.rfind(MARKER)
        if place < 0:
            return None
        start = place + len(MARKER)
        of_tail, of_all = end[start : start + DIGITS], end[start + DIGITS + 1 : start + 2 * DIGITS + 1]
        zeros = b"0" * DIGITS
        end = end[:start] + zeros + end[start + DIGITS : start + DIGITS + 1] + zeros + end[start + 2 * DIGITS + 1 :]
        if hash_bytes(end) != of_tail or not whole:
            return hash_bytes(end) == of_tail
        hashed = blake2b(digest_size=DIGITS // 2)
        file.seek(0)
        left = size - len(end)
        while left > 0 and (chunk := file.read(min(CHUNK, left))):
            hashed.update(chunk)
            left -= len(chunk)
        hashed.update(end)
        return hashed.hexdigest().encode() == of_all
