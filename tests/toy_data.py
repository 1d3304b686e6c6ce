"""Toy copies of the papers' datasets: a few tiny images in the real layouts and file formats."""

from __future__ import annotations

import json
import pickle
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

from tests.data.making import GOLDFISH, TENCH, ZEBRA, noise, save, write

SIDE = 40
WNIDS = (TENCH, GOLDFISH, ZEBRA)
BOX = (
    "<annotation><size><width>{side}</width><height>{side}</height></size><object><name>{wnid}</name><bndbox><xmin>8</xmin>"
    "<ymin>8</ymin><xmax>24</xmax><ymax>24</ymax></bndbox></object></annotation>"
)


def make_imagenet_val(root: Path, count: int = 3) -> Path:
    """val/<wnid>/ILSVRC2012_val_*.JPEG, and boxes as XML in bbox/val."""
    for number in range(count):
        wnid, stem = WNIDS[number % len(WNIDS)], f"ILSVRC2012_val_{number + 1:08d}"
        save(noise(SIDE, SIDE, number), root / "val" / wnid / f"{stem}.JPEG")
        write(root / "bbox" / "val" / f"{stem}.xml", BOX.format(side=SIDE, wnid=wnid))
    return root


def make_imagenet_seg(root: Path, count: int = 3) -> Path:
    """gtsegs_ijcv.mat: HDF5 with references to transposed images and outlines."""
    import h5py

    root.mkdir(parents=True, exist_ok=True)
    path = root / "gtsegs_ijcv.mat"
    outline = np.zeros((SIDE, SIDE), np.uint8)
    outline[8:24, 8:30] = 1
    with h5py.File(path, "w") as file:
        images = file.create_dataset("value/img", (count, 1), h5py.ref_dtype)
        outlines = file.create_dataset("value/gt", (count, 1), h5py.ref_dtype)
        for number in range(count):
            images[number, 0] = file.create_dataset(f"i{number}", data=np.asarray(noise(SIDE, SIDE, number)).T).ref
            inner = file.create_dataset(f"c{number}", (1, 1), h5py.ref_dtype)
            inner[0, 0] = file.create_dataset(f"o{number}", data=outline.T).ref
            outlines[number, 0] = inner.ref
    return path


def make_imagenet_s(root: Path, count: int = 3) -> Path:
    """validation/, validation-segmentation/ with class R + 256·G, and the list of categories."""
    write(root / "ImageNetS_categories_im919.txt", "\n".join(WNIDS) + "\n")
    for number in range(count):
        wnid, stem = WNIDS[number % len(WNIDS)], f"ILSVRC2012_val_{number + 1:08d}"
        ids = np.zeros((SIDE, SIDE, 3), np.uint8)
        ids[8:30, 8:24, 0] = 1 + number % len(WNIDS)
        save(noise(SIDE, SIDE, number), root / "validation" / wnid / f"{stem}.JPEG")
        save(ids, root / "validation-segmentation" / wnid / f"{stem}.png")
    return root


def make_cifar10(root: Path, count: int = 3) -> Path:
    """cifar-10-batches-py/ with test_batch and batches.meta, as Python 2 pickles."""
    folder = root / "cifar-10-batches-py"
    names = [f"class {number}".encode() for number in range(10)]
    dump(folder / "test_batch", {b"data": cifar_rows(count), b"labels": list(range(count))})
    dump(folder / "batches.meta", {b"label_names": names})
    return root


def make_cifar100(root: Path, count: int = 3) -> Path:
    """cifar-100-python/ with test and meta."""
    folder = root / "cifar-100-python"
    names = [f"class {number}".encode() for number in range(100)]
    dump(folder / "test", {b"data": cifar_rows(count), b"fine_labels": list(range(count))})
    dump(folder / "meta", {b"fine_label_names": names})
    return root


def cifar_rows(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 3072), dtype=np.uint8)


def dump(path: Path, content: dict[bytes, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=2))


def make_mura(root: Path, count: int = 3, split: str = "train") -> Path:
    """MURA-v1.1/<split>/XR_*/patient*/study*_{positive,negative}/image*.png, listed in <split>_image_paths.csv."""
    lines = []
    for number in range(count):
        word = ("positive", "negative")[number % 2]
        name = f"MURA-v1.1/{split}/XR_WRIST/patient{number:05d}/study1_{word}/image1.png"
        grey = np.random.default_rng(number).integers(0, 256, (SIDE, SIDE), dtype=np.uint8)
        save(Image.fromarray(grey), root / name)
        lines.append(name)
    write(root / "MURA-v1.1" / f"{split}_image_paths.csv", "\n".join(lines) + "\n")
    return root


def make_imagenet_flat(root: Path, count: int = 2) -> Path:
    """val/ILSVRC2012_val_*.JPEG and val.txt with the class last in each line."""
    names = [f"ILSVRC2012_val_{number + 1:08d}.JPEG" for number in range(count)]
    for number, name in enumerate(names):
        save(noise(SIDE, SIDE, number), root / "val" / name)
    write(root / "val.txt", "".join(f"{name} {number}\n" for number, name in enumerate(names)))
    return root


def make_pets(root: Path) -> Path:
    """The original layout: images/, annotations/list.txt, the lists of splits and trimaps."""
    save(noise(SIDE, SIDE), root / "images" / "pug_1.jpg")
    trimap = np.full((SIDE, SIDE), 2, np.uint8)
    trimap[8:24, 8:24] = 1
    save(trimap, root / "annotations" / "trimaps" / "pug_1.png")
    for name in ("list.txt", "test.txt", "trainval.txt"):
        write(root / "annotations" / name, "pug_1 1 2 1\n")
    return root


def make_coco(root: Path) -> Path:
    """A zebra and an elephant in one image of each split, with polygons and boxes."""
    zebra, elephant = [4, 4, 28, 4, 28, 40, 4, 40], [34, 8, 60, 8, 60, 44, 34, 44]
    annotations = [
        {"id": 1, "image_id": 1, "category_id": 24, "bbox": [4, 4, 24, 36], "area": 864, "iscrowd": 0, "segmentation": [zebra]},
        {"id": 2, "image_id": 1, "category_id": 22, "bbox": [34, 8, 26, 36], "area": 936, "iscrowd": 0, "segmentation": [elephant]},
    ]  # fmt: skip
    content = {
        "images": [{"id": 1, "file_name": "000000000001.jpg", "width": 64, "height": 48}],
        "categories": [{"id": 22, "name": "elephant"}, {"id": 24, "name": "zebra"}],
        "annotations": annotations,
    }
    for split in ("val2017", "train2017"):
        save(noise(64, 48), root / split / "000000000001.jpg")
        write(root / "annotations" / f"instances_{split}.json", json.dumps(content))
    return root


def make_folder(root: Path) -> Path:
    """Images with labels, boxes and masks."""
    save(noise(SIDE, SIDE), root / "images" / "one.png")
    save(np.eye(SIDE, dtype=np.uint8) * 255, root / "masks" / "one.png")
    write(root / "labels.csv", "file,label\none.png,3\n")
    write(root / "boxes.csv", "file,x0,y0,x1,y1\none.png,4,4,20,20\n")
    return root


def make_wds(root: Path) -> Path:
    """Two shards with one image and its class each."""
    for number in range(2):
        parts = root / "parts"
        save(noise(SIDE, SIDE, number), parts / "one.jpg")
        write(parts / "one.cls", str(number))
        with tarfile.open(root / f"shard-{number:03d}.tar", "w") as shard:
            for name in ("one.jpg", "one.cls"):
                shard.add(parts / name, name)
    return root


def make_parquet(root: Path) -> Path:
    """Two files with one image and its class each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    data = save(noise(SIDE, SIDE), root / "one.png").read_bytes()
    for number in range(2):
        rows = [{"image": {"bytes": data, "path": None}, "label": number}]
        pq.write_table(pa.Table.from_pylist(rows), root / f"part-{number}.parquet")
    return root


def make_hf(root: Path) -> Path:
    """A folder of `save_to_disk`."""
    import datasets

    table = datasets.Dataset.from_dict({"image": [noise(SIDE, SIDE)], "label": [1]})
    table.cast_column("image", datasets.Image()).save_to_disk(str(root))
    return root


MAKERS = {
    "imagenet-val": make_imagenet_val,
    "imagenet-seg": make_imagenet_seg,
    "imagenet-s": make_imagenet_s,
    "cifar10": make_cifar10,
    "cifar100": make_cifar100,
    "mura": make_mura,
    "coco": make_coco,
}

OTHER_MAKERS = {
    "imagenet-flat": make_imagenet_flat,
    "pets": make_pets,
    "folder": make_folder,
    "wds": make_wds,
    "parquet": make_parquet,
    "hf": make_hf,
}
