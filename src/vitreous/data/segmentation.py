"""ImageNet-Segmentation: 4276 images with one mask each, in one MATLAB 7.3 (HDF5) file, `gtsegs_ijcv.mat`."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitreous.core.errors import DataError
from vitreous.data.files import other_errors_as
from vitreous.data.reader import expand_path, import_package, reader
from vitreous.data.sample import Album, Sample
from vitreous.models.image_decoding import open_image

LAYOUT = "gtsegs_ijcv.mat (MATLAB 7.3) with references to images in /value/img and to outlines in /value/gt"


@reader("imagenet-seg", recognises=lambda path: path.suffix == ".mat")
def imagenet_seg(place: str | Path) -> Album:
    """ImageNet-Segmentation. Images have masks but no class, so the class that the model predicts is explained.

    Images and outlines are in one MATLAB 7.3 file.

    ```text
    imagenet-seg:/data/imagenet-seg/gtsegs_ijcv.mat
    ```

    ```text
    /data/imagenet-seg/gtsegs_ijcv.mat
    ```

    Parameters
    ----------
    place
        The file.
    """
    path = expand_path(place)
    if not path.is_file():
        raise DataError(f"there is no file at '{path}'; expected {LAYOUT}")
    file = SegmentationFile(path)
    count = file.count()
    return Album("imagenet-seg", [f"{index:05d}" for index in range(count)], file)


class SegmentationFile:
    """Reads samples from the file. Every thread and process opens its own handle at its first access."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open = threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        return SegmentationFile, (self.path,)

    def file(self) -> Any:
        if getattr(self._open, "process", None) != os.getpid():  # a handle cannot be used after a fork
            h5py = import_package("h5py", f"'{self.path}' (HDF5)")
            with other_errors_as(f"'{self.path}' is damaged or not HDF5; expected {LAYOUT}", OSError):
                self._open.file = h5py.File(self.path, "r")
            self._open.process = os.getpid()
        return self._open.file

    def count(self) -> int:
        file = self.file()
        missing = [name for name in ("value/img", "value/gt") if name not in file]
        if missing:
            raise DataError(f"'{self.path}' has no /{missing[0]}; expected {LAYOUT}")
        images, outlines = file["value/img"].shape, file["value/gt"].shape
        if images != outlines or len(images) != 2 or images[1] != 1:
            raise DataError(f"'{self.path}' has {images} images and {outlines} outlines; expected {LAYOUT}")
        return images[0]

    def __call__(self, index: int) -> Sample:
        with other_errors_as(f"image {index} of '{self.path}' is damaged; expected {LAYOUT}"):
            file = self.file()
            pixels = np.asarray(file[file["value/img"][index, 0]])
            outline = np.asarray(file[file[file["value/gt"][index, 0]][0, 0]])
        if pixels.ndim not in (2, 3) or outline.ndim != 2 or pixels.dtype != np.uint8:
            raise DataError(f"image {index} of '{self.path}' has {pixels.shape} pixels and {outline.shape} of outline")
        # MATLAB is column-major, so h5py returns transposed arrays.
        image = open_image(Image.fromarray(np.ascontiguousarray(pixels.T.squeeze())))
        if not np.isin(outline, (0, 1)).all():
            raise DataError(f"the outline of image {index} of '{self.path}' has numbers other than 0 and 1")
        return Sample(f"{index:05d}", image, mask=np.ascontiguousarray(outline.T, dtype=np.int8))
