"""Files behind URIs (`s3://…`, `gs://…`, `hf://…`, `https://…`, `memory://…`), through fsspec."""

from __future__ import annotations

import re
from typing import Any

from vitreous.core.errors import DataError
from vitreous.data.files import expand_braces, other_errors_as


def is_uri(place: str) -> bool:
    """Whether a text is a URI such as `s3://bucket/folder`.

    Examples
    --------
    >>> is_uri("s3://bucket/train-{000..127}.tar"), is_uri("scenes:pair"), is_uri("C:/images")
    (True, False, False)
    """
    return re.match(r"[a-z][a-z0-9+.-]+(::[a-z][a-z0-9+.-]+)*://", place) is not None


def open_filesystem(uri: str) -> Any:
    """File system of a URI, as an `fsspec.AbstractFileSystem`.

    Raises
    ------
    DataError
        If the package for this kind of URI is not installed, or the place cannot be reached.
    """
    with other_errors_as(f"'{uri}' cannot be opened: {{reason}}"):
        import fsspec

        return fsspec.core.url_to_fs(uri)[0]


def list_remote_files(uri: str, suffixes: tuple[str, ...]) -> tuple[Any, list[str]]:
    """File system, and the sorted paths below a URI (a file, a folder or a pattern) that end in one of `suffixes`.

    Ranges `{000..127}` and alternatives `{a,b}` are expanded.

    Raises
    ------
    DataError
        If there is no such file.
    """
    filesystem = open_filesystem(uri)
    paths: list[str] = []
    with other_errors_as(f"'{uri}' cannot be listed: {{reason}}"):
        for pattern in expand_braces(uri):
            path = filesystem._strip_protocol(pattern)
            if "*" in path:
                paths += sorted(filesystem.glob(path))
            elif filesystem.isdir(path):
                paths += sorted(filesystem.find(path))
            elif filesystem.exists(path):
                paths.append(path)
    paths = [path for path in paths if path.lower().endswith(suffixes) and not path.rsplit("/", 1)[-1].startswith(".")]
    if not paths:
        raise DataError(f"there is no file at '{uri}' that ends in {', '.join(suffixes)}")
    return filesystem, paths


def read_remote(filesystem: Any, path: str) -> bytes:
    """Content of a file; raises `DataError` if it cannot be read."""
    with other_errors_as(f"'{path}' cannot be read: {{reason}}"):
        return filesystem.cat_file(path)
