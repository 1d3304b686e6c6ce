"""Names are safe and unique; files are complete or absent; folders and patterns become images."""

from __future__ import annotations

import os

import pytest

from vitreous.cli.files import OutputFolder, gather_images, make_safe_name
from vitreous.core.errors import DataError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("decompx+skipplus", "decompx+skipplus"),
        ("tis(masks=256)", "tis-masks=256"),
        ("../../etc/passwd", "etc-passwd"),
        ("African elephant", "African-elephant"),
        ("CON: a\\b*c?", "CON-a-b-c"),
        ("斑马", "斑马"),
        (".hidden", "hidden"),
        ("///", "unnamed"),
        ("new\nline\x00", "new-line"),
    ],
)
def test_names_are_readable_and_safe(text, expected):
    assert make_safe_name(text) == expected


def test_long_names_are_shortened_and_stay_distinct():
    first, second = make_safe_name("x" * 300 + "1"), make_safe_name("x" * 300 + "2")

    assert first != second
    assert max(map(len, (first, second))) <= 80
    assert len(make_safe_name("斑" * 300).encode()) <= 80


def test_file_names_are_unique_regardless_of_case(tmp_path):
    output = OutputFolder(tmp_path)

    assert [output.claim("Zebra"), output.claim("zebra"), output.claim("zebra-2")] == ["Zebra", "zebra-2", "zebra-2-2"]


def test_a_file_appears_when_it_is_whole_with_the_usual_rights(tmp_path):
    (tmp_path / "plain").touch()

    with OutputFolder(tmp_path).writing("a.txt") as file:
        file.write_text("whole")
        file.chmod(0o600)
        assert not (tmp_path / "a.txt").exists()

    assert (tmp_path / "a.txt").read_text() == "whole"
    assert (tmp_path / "a.txt").stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert len(list(tmp_path.iterdir())) == 2


def test_a_failed_write_keeps_the_old_file(tmp_path):
    (tmp_path / "a.txt").write_text("old")

    def fail() -> None:
        with OutputFolder(tmp_path).writing("a.txt") as file:
            file.write_text("new")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_a_full_disk_gives_an_error_message(tmp_path):
    with (
        pytest.raises(DataError, match=r"a\.txt' cannot be written: No space left"),
        OutputFolder(tmp_path).writing("a.txt"),
    ):
        raise OSError(28, os.strerror(28))


def test_images_are_gathered_once_in_order(tmp_path):
    for name in ("b.PNG", "a.jpg", "c.txt", ".hidden.png"):
        (tmp_path / name).touch()
    inside = tmp_path / "deep"
    inside.mkdir()
    (inside / "d.webp").touch()

    found = gather_images([str(tmp_path / "b.PNG"), str(tmp_path), str(tmp_path / "**" / "*.webp")])

    assert [path.name for path in found] == ["b.PNG", "a.jpg", "d.webp"]


def test_a_folder_of_hidden_images_holds_none(tmp_path):
    (tmp_path / "._x.png").touch()

    with pytest.raises(DataError, match="holds no images"):
        gather_images([str(tmp_path)])


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(tmp_path):
    (tmp_path / "x[1].png").touch()

    assert [path.name for path in gather_images([str(tmp_path / "x[1].png")])] == ["x[1].png"]
