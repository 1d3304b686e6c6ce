"""Files of attributions: safetensors, npz and npy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vitreous.core.errors import DataError, ShapeError
from vitreous.models.image_input import Preprocess
from vitreous.models.layout import ClipLayout, Layout
from vitreous.models.transforms import OpaquePreprocess

if TYPE_CHECKING:
    from vitreous.methods.attribution import Attribution

FORMATS = ("safetensors", "npz", "npy", "gif", "webp")
TENSORS = (
    "patches", "stderr", "prefix", "bias", "residual", "score", "logits", "targets", "native_pixels", "images",
)  # fmt: skip
UNREADABLE = (SafetensorError, BadZipFile, KeyError, ValueError, TypeError, AttributeError, OSError, EOFError)


def save_attribution(
    attribution: Attribution,
    path: Path,
    format: str | None,  # noqa: A002 - as in matplotlib
    images: bool = False,
) -> Path:
    """Write an attribution to a file; see `Attribution.save`."""
    chosen = path.suffix.removeprefix(".").lower() if format is None else format
    if chosen not in FORMATS:
        wrong = f"format={format!r}" if format is not None else f"the name {path.name!r}"
        raise DataError(
            f"{wrong} is no format of attributions; save as .safetensors, .npz or .npy, a clip also as .gif or .webp"
        )
    if chosen in ("gif", "webp"):
        from vitreous.draw import save_animation

        return save_animation(attribution, path, format=chosen)
    if images and chosen == "npy":
        raise DataError("a .npy file holds maps alone; save as .safetensors or .npz with images=True")
    if images and attribution.images is None:
        raise ShapeError("there are no images to store; attribution.with_images(image).save(…, images=True) would work")
    stored = [name for name in TENSORS if images or name != "images"]  # an image may be of a patient
    tensors = {name: t.cpu().contiguous() for name in stored if (t := getattr(attribution, name)) is not None}
    path.parent.mkdir(parents=True, exist_ok=True)
    match chosen:
        case "safetensors":
            save_file(tensors, path, metadata={"vitreous": json.dumps(metadata(attribution))})
        case "npz":
            dtypes = {name: str(t.dtype).removeprefix("torch.") for name, t in tensors.items()}
            about = np.array(json.dumps({**metadata(attribution), "dtypes": dtypes}))
            with path.open("wb") as file:
                arrays: dict[str, Any] = {name: as_array(t) for name, t in tensors.items()}
                np.savez(file, vitreous=about, **arrays)
        case _:
            with path.open("wb") as file:
                np.save(file, as_array(attribution.maps()))
    return path


def as_array(tensor: Tensor) -> np.ndarray:
    """Tensor as a numpy array; bfloat16, which numpy lacks, becomes float32."""
    tensor = tensor.cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def metadata(attribution: Attribution) -> dict[str, Any]:
    """Fields that are not tensors, as JSON values."""
    preprocess = attribution.preprocess
    has_geometry = preprocess is not None and not isinstance(preprocess, OpaquePreprocess)
    return {
        "format": "vitreous.attribution/1",
        "layout": asdict(attribution.layout),
        "method": attribution.method,
        "native": attribution.native,
        "signed": attribution.signed,
        "names": attribution.names,
        "provenance": dict(attribution.provenance),
        "preprocess": {item.name: getattr(preprocess, item.name) for item in fields(Preprocess)}
        if has_geometry
        else None,
    }


def read_attribution(path: str | Path) -> dict[str, Any]:
    """Fields of an attribution in a file; see `Attribution.load`."""
    try:
        with Path(path).open("rb") as file:
            start = file.read(6)
        if start == b"\x93NUMPY":
            raise DataError(
                f"{str(path)!r} holds maps alone, without layout, method and classes; read it with numpy.load, and "
                "save attributions as .safetensors or .npz to load them"
            )
        about, tensors = read_npz(path) if start.startswith(b"PK") else read_safetensors(path)
        layout, names, preprocess = about["layout"], about["names"], about.get("preprocess")
        return {
            "patches": None,
            **tensors,
            "layout": (ClipLayout if "times" in layout else Layout)(**with_tuples(layout)),
            "names": None if names is None else tuple(names),
            "preprocess": None if preprocess is None else read_preprocess(preprocess),
            **{key: about[key] for key in ("method", "native", "signed", "provenance")},
        }
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"no file {str(path)!r}") from None
    except UNREADABLE as problem:
        raise DataError(f"{str(path)!r} is not an attribution saved by Vitreous ({problem})") from None


def read_safetensors(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    with safe_open(path, framework="pt") as file:
        about = json.loads((file.metadata() or {})["vitreous"])
        return about, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping


def read_npz(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    # numpy does not close a file that it opened itself if the archive is damaged
    with Path(path).open("rb") as stream, np.load(stream, allow_pickle=False) as file:
        about = json.loads(str(file["vitreous"]))
        dtypes = about["dtypes"]
        return about, {name: torch.from_numpy(file[name]).to(getattr(torch, dtypes[name])) for name in dtypes}


def read_preprocess(values: Mapping[str, Any]) -> Preprocess:
    """`Preprocess` from JSON values."""
    return Preprocess(**with_tuples(values))


def with_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    """JSON values, with tuples in place of lists."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
