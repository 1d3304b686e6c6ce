"""Preprocessing of images for a model, and its inverse, which brings maps back to the original image."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from vitreous.core.deprecation import rename_warnings, renamed_parameters
from vitreous.core.errors import ModelError, ShapeError, SpecError
from vitreous.models.image_decoding import Source, open_image, resize_by_torch
from vitreous.models.image_geometry import ImageGeometry

Triple: TypeAlias = tuple[float, float, float]

RESAMPLING = {method.name.lower(): method for method in Image.Resampling}
LARGE = 1 << 26  # pixels; of larger resized images only the visible part is computed
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HF_FAMILIES = ("ViT", "DeiT", "Beit", "Bit", "Siglip", "CLIP")  # resize, crop, rescale and normalise, in this order
PAPERS = ("chefer", "tokentm", "tis", "skipplus")


@dataclass(frozen=True, slots=True)
class Preprocess(ImageGeometry):
    """Resize, crop or pad around the centre, and normalise; with the inverse from model input to the original image.

    All sizes are (height, width).

    Parameters
    ----------
    size
        Height and width of the model input.
    resize
        Size to which an image is resized before the crop; None means no resizing.
    fit
        How the image is resized to `resize`: "stretch" to exactly this size; "shortest" so that the shorter edge is
        `resize[0]` (torchvision's `Resize(n)`); "cover" to the smallest size that covers it and "contain" to the
        largest size within it, both with the aspect ratio kept.
    interpolation
        Interpolation of the resizing: "nearest", "bilinear", "bicubic", "lanczos", "box" or "hamming".
    mean, std
        Per colour channel, for colours from 0 to 1: the model input is `(colour - mean) / std`.
    fill
        Colour (0 to 255) of the padding around an image that is smaller than `size`.
    centre
        Rounding of the crop position when the margin is odd; libraries differ: "round" (torchvision, timm), "truncate"
        or "floor".
    engine
        Library that resizes, "pillow" or "torch" (torchvision on tensors); they round differently.
    crop
        If False, the image is not cropped: the model input is the whole resized image, and `size` is that of a square
        image.

    Raises
    ------
    ModelError
        If the interpolation is unknown.

    Examples
    --------
    >>> from vitreous import Preprocess
    >>> preprocess = Preprocess(size=(224, 224), resize=(256, 256), fit="shortest", mean=(0.5,) * 3, std=(0.5,) * 3)
    >>> preprocess.window((512, 768))
    (160.0, 32.0, 608.0, 480.0)
    >>> import numpy as np
    >>> from PIL import Image
    >>> image = Image.fromarray(np.zeros((512, 768, 3), np.uint8))
    >>> preprocess.batch([image]).shape, preprocess.cut(image).size
    (torch.Size([1, 3, 224, 224]), (224, 224))
    >>> inputs = preprocess.normalise(preprocess.colours(image))
    >>> preprocess.denormalise(inputs).max()
    tensor(0, dtype=torch.uint8)
    >>> preprocess.published("tis", preprocess).mean
    (0.485, 0.456, 0.406)
    """

    size: tuple[int, int]
    resize: tuple[int, int] | None = None
    fit: Literal["stretch", "shortest", "cover", "contain"] = "stretch"
    interpolation: str = "bicubic"
    mean: Triple = (0.5, 0.5, 0.5)
    std: Triple = (0.5, 0.5, 0.5)
    fill: tuple[int, int, int] = (0, 0, 0)
    centre: Literal["round", "truncate", "floor"] = "round"
    engine: Literal["pillow", "torch"] = "pillow"
    crop: bool = True

    def __post_init__(self) -> None:
        if self.interpolation not in RESAMPLING:
            raise ModelError(f"no interpolation {self.interpolation!r}; known: {', '.join(RESAMPLING)}")

    @renamed_parameters(picture="image")
    def __call__(self, image: Source) -> Float[Tensor, "3 H W"]:
        """Convert one image to a model input."""
        return self.normalise(self.colours(image))

    @renamed_parameters(picture="image")
    def colours(self, image: Source) -> UInt8[Tensor, "3 H W"]:
        """Resize and crop one image, without normalisation; `normalise` converts the result to a model input.

        Parameters
        ----------
        image
            A path, bytes, PIL image or 8-bit array.

        Returns
        -------
        Tensor
            Colours from 0 to 255 [3 H W].
        """
        return torch.from_numpy(np.array(self.cut(open_image(image)))).permute(2, 0, 1)

    def normalise(self, colours: UInt8[Tensor, "*b 3 H W"]) -> Float[Tensor, "*b 3 H W"]:
        """Convert colours from 0 to 255 to model inputs, on the device of the colours.

        The copy to a GPU does not block the host.

        Parameters
        ----------
        colours
            Colours from 0 to 255 [3 H W] or [b 3 H W].

        Returns
        -------
        Tensor
            Model inputs of the same shape.
        """
        mean, std = (
            channels(values).to(colours.device, non_blocking=colours.is_cuda) for values in (self.mean, self.std)
        )
        return (colours.float() / 255 - mean) / std

    @renamed_parameters(pictures="images")
    def batch(self, images: Sequence[Source]) -> Float[Tensor, "b 3 H W"]:
        """Convert several images to a batch of model inputs.

        Parameters
        ----------
        images
            Paths, bytes, PIL images or 8-bit arrays.

        Returns
        -------
        Tensor
            Model inputs [b 3 H W].

        Raises
        ------
        ShapeError
            If there is no image, or the tensors have different sizes (possible only without a crop).
        """
        if not images:
            raise ShapeError("no image was given; a batch needs at least one")
        tensors = [self(image) for image in images]
        sizes = sorted({tuple(tensor.shape[-2:]) for tensor in tensors})
        if len(sizes) > 1:
            raise ShapeError(
                f"these images become tensors of several sizes, {', '.join(f'{h}x{w}' for h, w in sizes)}; explain them one "
                "by one, or give a preprocess with a crop"
            )
        return torch.stack(tensors)

    @renamed_parameters(picture="image")
    def cut(self, image: Image.Image) -> Image.Image:
        """Resize the image and crop or pad it to the model's input size, without normalisation.

        Parameters
        ----------
        image
            A PIL image.

        Returns
        -------
        PIL.Image.Image
            The part that the model sees.
        """
        (top, left), (rows, columns) = self.place((image.height, image.width))
        height, width = self.seen_size((rows, columns))
        canvas = Image.new("RGB", (width, height), self.fill)
        if rows * columns <= LARGE:
            resize = resize_by_torch if self.engine == "torch" else Image.Image.resize
            canvas.paste(resize(image, (columns, rows), RESAMPLING[self.interpolation]), (-left, -top))
            return canvas
        # A long thin image would need gigabytes when resized: resize only the visible part.
        x, y, right, bottom = max(left, 0), max(top, 0), min(left + width, columns), min(top + height, rows)
        across, down = image.width / columns, image.height / rows
        box = (x * across, y * down, right * across, bottom * down)
        part = image.resize((right - x, bottom - y), RESAMPLING[self.interpolation], box=box)
        canvas.paste(part, (x - left, y - top))
        return canvas

    def denormalise(self, images: Float[Tensor, "*b 3 H W"]) -> UInt8[Tensor, "*b 3 H W"]:
        """Convert model inputs back to 8-bit colours for display.

        Parameters
        ----------
        images
            Model inputs [3 H W] or [b 3 H W].

        Returns
        -------
        Tensor
            Colours from 0 to 255 of the same shape.
        """
        colours = images * channels(self.std).to(images) + channels(self.mean).to(images)
        return (colours * 255).round().clamp(0, 255).to(torch.uint8)

    @classmethod
    def plain(cls, size: int | tuple[int, int], mean: float | Triple = 0.5, std: float | Triple = 0.5) -> Preprocess:
        """Resize to cover `size` with the aspect ratio kept, crop the centre and normalise.

        Parameters
        ----------
        size
            Height and width of the model input, or one number for both.
        mean, std
            Per colour channel, or one number for all, for colours from 0 to 1.

        Returns
        -------
        Preprocess

        Examples
        --------
        >>> from vitreous import Preprocess
        >>> Preprocess.plain(224, mean=0.5, std=0.5).size
        (224, 224)
        """
        size = (size, size) if isinstance(size, int) else size
        return cls(size, size, "cover", mean=triple(mean), std=triple(std))

    @classmethod
    def published(cls, paper: str, own: Preprocess) -> Preprocess:
        """Preprocessing of a paper's published evaluation.

        Parameters
        ----------
        paper
            "chefer", "tokentm", "tis" or "skipplus".
        own
            The model's own preprocessing, from which the size and (except for "tis") mean and std are taken; "skipplus"
            returns it unchanged.

        Returns
        -------
        Preprocess

        Raises
        ------
        SpecError
            If the paper is unknown.
        """
        match paper:
            case "chefer" | "tokentm":
                return cls(own.size, own.size, "stretch", "bilinear", own.mean, own.std)
            case "tis":  # ImageNet's mean and std for every model, also for models trained with others
                box = round(own.size[0] * 256 / 224), round(own.size[1] * 256 / 224)
                return cls(own.size, box, "stretch", "bilinear", *IMAGENET)
            case "skipplus":
                return own
        raise SpecError(f"no paper's preprocessing is called {paper!r}; known: {', '.join(PAPERS)}")

    @classmethod
    def from_timm(cls, config: Mapping[str, Any]) -> Preprocess:
        """The evaluation transform of `timm.data.create_transform`.

        Parameters
        ----------
        config
            As returned by `timm.data.resolve_model_data_config`.

        Returns
        -------
        Preprocess

        Raises
        ------
        ModelError
            If the config has unknown options or crop modes, or the model does not take 3 channels.

        Examples
        --------
        >>> import timm
        >>> from vitreous import Preprocess
        >>> model = timm.create_model("vit_tiny_patch16_224", pretrained=False, depth=1)
        >>> Preprocess.from_timm(timm.data.resolve_model_data_config(model)).size
        (224, 224)
        """
        keys = {"input_size", "interpolation", "mean", "std", "crop_pct", "crop_mode"}
        if odd := sorted(key for key in config.keys() - keys if config[key]):
            raise ModelError(f"timm data config with {', '.join(odd)} is not known; known: {', '.join(sorted(keys))}")
        colours, height, width = config["input_size"]
        if colours != 3:
            raise ModelError(f"images have 3 colours, the model reads {colours}")
        part = config.get("crop_pct") or 0.875
        box = math.floor(height / part), math.floor(width / part)
        mean, std, interpolation = triple(config["mean"]), triple(config["std"]), config["interpolation"]
        match config.get("crop_mode") or "center":
            case "squash":
                return cls((height, width), box, "stretch", interpolation, mean, std)
            case "border":
                red, green, blue = (round(255 * value) for value in mean)
                return cls((height, width), box, "contain", interpolation, mean, std, (red, green, blue))
            case "center" if box[0] == box[1]:
                return cls((height, width), box, "shortest", interpolation, mean, std)
            case "center":  # timm does not pass the interpolation on in this case
                return cls((height, width), box, "cover", "bilinear", mean, std)
            case mode:
                raise ModelError(f"timm crop_mode {mode!r} is not known; known: center, squash, border")

    @classmethod
    def from_torchvision(cls, preset: Any) -> Preprocess:
        """Same preprocessing as `weights.transforms()` of a torchvision classifier; `ModelError` for other presets.

        Parameters
        ----------
        preset
            What `weights.transforms()` returns.

        Returns
        -------
        Preprocess

        Examples
        --------
        >>> from torchvision.models import ViT_B_16_Weights
        >>> from vitreous import Preprocess
        >>> Preprocess.from_torchvision(ViT_B_16_Weights.DEFAULT.transforms()).resize
        (256, 256)
        """
        if type(preset).__name__ != "ImageClassification":
            raise ModelError(f"torchvision's {type(preset).__name__!r} is not known; known: ImageClassification")
        crop, box = ((sides[0], sides[-1]) for sides in (preset.crop_size, preset.resize_size))
        fit = "shortest" if len(preset.resize_size) == 1 else "stretch"
        return cls(crop, box, fit, preset.interpolation.value, triple(preset.mean), triple(preset.std))

    @classmethod
    def from_hf(cls, processor: Any) -> Preprocess:
        """Same preprocessing as a Hugging Face image processor.

        Parameters
        ----------
        processor
            The image processor.

        Returns
        -------
        Preprocess

        Raises
        ------
        ModelError
            If the processor's class or size is unknown, it pads, or its output size depends on the image.

        Examples
        --------
        >>> import transformers
        >>> from vitreous import Preprocess
        >>> Preprocess.from_hf(transformers.ViTImageProcessor()).size
        (224, 224)
        """
        name = type(processor).__name__
        if name.removesuffix("Fast").removesuffix("Pil") not in [f"{family}ImageProcessor" for family in HF_FAMILIES]:
            raise ModelError(f"{name!r} is not known; known: the image processors of {', '.join(HF_FAMILIES)}")
        steps = ("do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_pad")
        resizes, crops, rescales, normalises, pads = (bool(getattr(processor, step, False)) for step in steps)
        box, shortest = edges(processor.size) if resizes else (None, False)
        size = edges(processor.crop_size)[0] if crops else None if shortest else box
        if pads or size is None:
            raise ModelError(f"{name!r} with do_pad, or without one size for all images (do_center_crop), is not known")
        # A rescale factor other than 1/255 is equivalent to another mean and standard deviation.
        unit = 255 * processor.rescale_factor if rescales else 255.0
        mean = triple(processor.image_mean if normalises else 0.0, unit)
        std = triple(processor.image_std if normalises else 1.0, unit)
        method = getattr(processor.resample, "value", processor.resample)  # name in torchvision, or number in Pillow
        method = method if isinstance(method, str) else Image.Resampling(method).name.lower()
        own = ("floor", "pillow") if getattr(processor, "backend", "torchvision") == "pil" else ("truncate", "torch")
        return cls(size, box, "shortest" if shortest else "stretch", method, mean, std, (0, 0, 0), *own)


def channels(values: Triple) -> Float[Tensor, "3 1 1"]:
    return torch.tensor(values, dtype=torch.float32)[:, None, None]


def edges(size: Any) -> tuple[tuple[int, int], bool]:
    """Height and width of a Hugging Face size, and whether only the shortest edge is given."""
    match {key: value for key, value in dict(size).items() if value}:
        case {"height": height, "width": width, **rest} if not rest:
            return (height, width), False
        case {"shortest_edge": edge, **rest} if not rest:
            return (edge, edge), True
    raise ModelError(f"image size {size} is not known; known: height and width, or shortest_edge")


def triple(values: Any, unit: float = 1.0) -> Triple:
    """One number per colour channel, divided by `unit`; a single number is repeated."""
    values = list(values) if isinstance(values, Sequence) else [values] * 3
    if len(values) != 3:
        raise ModelError(f"a mean or deviation per colour has 3 numbers, not {len(values)}")
    red, green, blue = (float(value) / unit for value in values)
    return red, green, blue


__getattr__ = rename_warnings(__name__, {"open_picture": "open_image"})
