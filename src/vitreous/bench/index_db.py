"""SQLite index of a store. Several processes may open it, and it can be rebuilt from the Parquet files."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from functools import partial
from pathlib import Path

from vitreous.core.errors import DataError

FORMAT = 2
PATIENCE = 120  # seconds to wait for another writer
SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS parts (name TEXT PRIMARY KEY, bytes INTEGER, rows INTEGER, made REAL);
CREATE TABLE IF NOT EXISTS rows (key BLOB PRIMARY KEY, part TEXT NOT NULL, failed INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS rows_of_part ON rows (part);
CREATE TABLE IF NOT EXISTS runs (name TEXT PRIMARY KEY, plan TEXT, made REAL, about TEXT, checked TEXT);
CREATE TABLE IF NOT EXISTS cells (run TEXT, cell INTEGER, listing BLOB, PRIMARY KEY (run, cell)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counts (run TEXT PRIMARY KEY, cells INTEGER NOT NULL) WITHOUT ROWID;
PRAGMA user_version = {FORMAT};
COMMIT;
"""


def open_index(path: Path, *, write: bool = True) -> tuple[sqlite3.Connection, bool]:
    """Open the index database of a store.

    A file that is damaged or of an earlier version is renamed and replaced by an empty one. With `write=False`, a file in a
    read-only folder is opened read-only, or replaced by a database in memory if it is damaged.

    Returns
    -------
    tuple of Connection and bool
        The connection, and whether the database is new and has to be filled.

    Raises
    ------
    DataError
        If the database is locked or cannot be opened, or was written by a newer version.
    """
    is_new = not path.exists()
    try:
        return connect(path), is_new
    except sqlite3.OperationalError as problem:  # locked, read-only or disk full, but not damaged
        try:
            if not write and (connection := open_read_only(path)) is not None:
                return connection, False
        except sqlite3.DatabaseError:
            return connect(":memory:"), True
        raise DataError(f"'{path}' cannot be opened: {problem}") from None
    except sqlite3.DatabaseError:
        return replace_index(path), True


def replace_index(path: Path) -> sqlite3.Connection:
    """Rename a damaged index and open an empty one; one in memory if the folder is read-only."""
    try:
        path.replace(path.with_name(f"ledger.damaged-{time.time_ns()}"))
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
    except OSError:
        return connect(":memory:")
    return connect(path)


def connect(path: Path | str) -> sqlite3.Connection:
    """Connect to the database, check it, and create its tables if they are missing.

    Raises
    ------
    sqlite3.DatabaseError
        If it is damaged or of an earlier version.
    """
    connection = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
    try:
        enable_write_ahead(connection)
        connection.execute("PRAGMA synchronous = FULL")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > FORMAT:
            raise DataError(f"'{path}' was written by a newer Vitreous (format {version}); this one reads {FORMAT}")
        if 0 < version < FORMAT:
            raise sqlite3.DatabaseError("of an earlier version")
        if version == 0:
            connection.executescript(SCHEMA)
        check(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def open_read_only(path: Path) -> sqlite3.Connection | None:
    """Open the database of a read-only folder as immutable.

    Returns None if the folder is writable, if there is no database, or if its write-ahead log is not empty, that is, if
    another process is writing or was killed while writing.
    """
    log = path.with_name(f"{path.name}-wal")
    if os.access(path.parent, os.W_OK) or not path.is_file() or (log.exists() and log.stat().st_size):
        return None
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?immutable=1", uri=True, isolation_level=None)
    check(connection)
    return connection


def check(connection: sqlite3.Connection) -> None:
    """Raise `sqlite3.DatabaseError` if the structure of the database is damaged; damaged text is read as another text."""
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")
    (answer,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if answer != "ok":
        raise sqlite3.DatabaseError(answer)
    if list_tables(connection) != EXPECTED:
        raise sqlite3.DatabaseError("its tables are others")


def list_tables(connection: sqlite3.Connection) -> list[tuple[str, str, str]]:
    """Kind, name and definition of all tables and indices."""
    return connection.execute(
        "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"
    ).fetchall()


def list_expected_tables() -> list[tuple[str, str, str]]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.executescript(SCHEMA)
        return list_tables(connection)


def enable_write_ahead(connection: sqlite3.Connection) -> None:
    """Switch to write-ahead logging; retried, since SQLite does not wait here for others that open the database."""
    for attempt in range(100):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as problem:
            if "locked" not in str(problem) or attempt == 99:
                raise
            time.sleep(0.05)


EXPECTED = list_expected_tables()
