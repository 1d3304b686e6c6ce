"""A sealed file is recognised as damaged, whichever of its bits was changed."""

from __future__ import annotations

from pathlib import Path

from vitreous.core.sealed_files import UNSEALED, is_intact, put_whole, seal


def test_every_changed_bit_is_noticed(tmp_path: Path) -> None:
    file, tail = tmp_path / "file", len(UNSEALED) + 7
    data = seal(b"some rows of a file, " + b"and " + UNSEALED.encode() + b" then", tail)
    put_whole(file, data)
    assert is_intact(file, tail) is is_intact(file, tail, whole=False) is True

    for place in range(len(data)):
        for bit in range(8):
            file.write_bytes(data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :])
            assert not is_intact(file, tail), place
            assert is_intact(file, tail, whole=False) == (place < len(data) - tail) or place >= len(data) - tail, place
    for cut in (1, 10, 60, len(data)):
        file.write_bytes(data[:-cut])
        assert not is_intact(file, tail)


def test_a_file_without_a_seal_is_neither(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"rows")
    assert is_intact(tmp_path / "file", 4) is None
