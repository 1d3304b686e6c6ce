"""CIFAR: pickles of every age are read, and nothing in them is executed."""

from __future__ import annotations

import os
import pickle
import pickletools

import numpy as np
import pytest

from vitreous.core.errors import DataError
from vitreous.data import open_dataset


def rows(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8)


def dump(path, content, protocol: int = 2) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol))


def as_python_2_wrote_it(array: np.ndarray, rest: dict[bytes, object]) -> bytes:
    """Opcodes of the published files: numpy.core names, and bytes as short strings."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    def number(value: int) -> bytes:
        return b"J" + value.to_bytes(4, "little", signed=True)

    array_code = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n"
        + number(0)
        + b"\x85"
        + text(b"b")
        + b"tR("
        + number(1)
        + number(array.shape[0])
        + number(array.shape[1])
        + b"\x86"
        + b"cnumpy\ndtype\n("
        + text(b"u1")
        + number(0)
        + number(1)
        + b"tR("
        + number(3)
        + text(b"|")
        + b"NNN"
        + number(-1)
        + number(-1)
        + number(0)
        + b"tb"
        + b"\x89"
        + b"T"
        + array.size.to_bytes(4, "little")
        + array.tobytes()
        + b"tb"
    )
    pairs = text(b"data") + array_code
    for key, value in rest.items():
        pairs += text(key) + (b"](" + b"".join(number(one) for one in value) + b"e")
    return b"\x80\x02}(" + pairs + b"u."


@pytest.fixture
def ten(tmp_path):
    root = tmp_path / "cifar-10-batches-py"
    root.mkdir()
    (root / "test_batch").write_bytes(as_python_2_wrote_it(rows(4, 0), {b"labels": [3, 0, 1, 2]}))
    for part in range(1, 6):
        dump(
            root / f"data_batch_{part}", {b"data": rows(2, part), b"labels": [part % 4, 0], b"filenames": [b"a", b"b"]}
        )
    dump(root / "batches.meta", {b"label_names": [b"plane", b"car", b"bird", b"cat"], b"num_vis": 3072})
    return tmp_path


def test_test_images_are_as_published(ten):
    dataset = open_dataset(ten)

    assert (len(dataset), dataset.name, dataset.classes) == (4, "cifar10", ("plane", "car", "bird", "cat"))
    assert [dataset[index].label for index in range(4)] == [3, 0, 1, 2]
    pixels = np.asarray(dataset[2].image)
    stored = rows(4, 0)[2]
    for row, column in ((0, 0), (5, 17), (31, 31)):
        for colour in range(3):
            assert pixels[row, column, colour] == stored[1024 * colour + 32 * row + column]


def test_training_images_are_in_five_files(ten):
    dataset = open_dataset(f"cifar10:{ten / 'cifar-10-batches-py'}?split=train")

    assert len(dataset) == 10
    assert dataset.keys[9] == "train/00009"
    assert [dataset[2 * part - 2].label for part in range(1, 6)] == [1, 2, 3, 0, 1]
    assert np.array_equal(np.asarray(dataset[9].image)[..., 0], rows(2, 5)[1][:1024].reshape(32, 32))


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_hundred_classes_fine_and_coarse_in_any_protocol(tmp_path, protocol):
    root = tmp_path / "cifar-100-python"
    for part in ("train", "test"):
        content = {"data": rows(3, 1), "fine_labels": [2, 0, 1], "coarse_labels": [1, 0, 0]}
        dump(root / part, content, protocol)
    names = {"fine_label_names": ["apple", "fish", "baby"], "coarse_label_names": ["fruit", "people"]}
    dump(root / "meta", names, protocol)

    fine, coarse = open_dataset(root), open_dataset(f"cifar100:{tmp_path}?coarse=true")

    assert (fine.name, fine.classes, coarse.classes) == ("cifar100", ("apple", "fish", "baby"), ("fruit", "people"))
    assert [fine[index].label for index in range(3)] == [2, 0, 1]
    assert [coarse[index].label for index in range(3)] == [1, 0, 0]
    assert fine.describe() != coarse.describe()


class Hostile:
    def __init__(self, function, *given):
        self.function, self.given = function, given

    def __reduce__(self):
        return self.function, self.given


@pytest.mark.parametrize(
    ("payload", "name"),
    [
        (Hostile(os.system, "touch OWNED"), "posix.system"),
        (Hostile(eval, "open('OWNED', 'w')"), "__builtin__.eval"),
        (Hostile(getattr, "x", "format"), "__builtin__.getattr"),
        (Hostile(np.load, "x", None, True), "numpy.load"),
    ],
)
def test_a_hostile_pickle_is_refused_by_name(ten, tmp_path, monkeypatch, payload, name):
    monkeypatch.chdir(tmp_path)
    path = ten / "cifar-10-batches-py" / "test_batch"
    dump(path, {b"data": rows(4, 0), b"labels": [0, 1, 2, 3], b"extra": payload})
    assert any(code.name in ("GLOBAL", "STACK_GLOBAL") for code, _, _ in pickletools.genops(path.read_bytes()))

    with pytest.raises(DataError, match=rf"test_batch' is not read: it names {name}"):
        open_dataset(ten)
    assert not (tmp_path / "OWNED").exists()


def test_bytes_in_odd_encodings_are_refused(ten):
    path = ten / "cifar-10-batches-py" / "test_batch"
    path.write_bytes(b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R.")

    with pytest.raises(DataError, match="bytes in 'rot13'"):
        open_dataset(ten)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([1, 2], "holds a list, not a dictionary"),
        ({b"data": rows(4, 0)[:, :100], b"labels": [0] * 4}, "no data of 3072 bytes"),
        ({b"data": rows(4, 0), b"labels": [0] * 3}, "no labels, one for each of its 4"),
        ({b"data": rows(4, 0), b"labels": [0, 1, 2, 9]}, "classes from 0 to 9, and names for 4"),
    ],
)
def test_invalid_content_is_reported(ten, content, said):
    dump(ten / "cifar-10-batches-py" / "test_batch", content)

    with pytest.raises(DataError, match=said):
        open_dataset(ten)


def test_damaged_files_are_reported(ten):
    path = ten / "cifar-10-batches-py" / "test_batch"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(DataError, match=r"test_batch' is"):
        open_dataset(ten)
    path.unlink()
    with pytest.raises(DataError, match=r"no file at '.*test_batch'; expected cifar-10-batches-py"):
        open_dataset(ten)
