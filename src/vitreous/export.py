"""Export of maps: masks, COCO run-length encodings, images with alpha, and a model with its map as ONNX."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from PIL import Image
from torch import Tensor

from vitreous.capture.argument_types import ArrayInput, ModelInput
from vitreous.capture.probe import Probe
from vitreous.core.errors import ModelError, ShapeError, SpecError
from vitreous.methods.attribution import Attribution
from vitreous.methods.map_arrays import resize_maps
from vitreous.methods.recipe import LayerSignal
from vitreous.methods.spec import resolve
from vitreous.models.eval_mode import evaluating
from vitreous.models.vit import ViT
from vitreous.wrapping import as_model

__all__ = ["MapModule", "alpha_image", "coco_rle", "masks", "onnx"]


def __dir__() -> list[str]:
    return sorted(__all__)


def masks(
    attribution: Attribution,
    *,
    top: float | None = None,
    threshold: float | None = None,
    size: tuple[int, int] | None = None,
) -> Bool[Tensor, "r height width"]:
    """Masks of the highest scores.

    Parameters
    ----------
    attribution
        The maps.
    top
        Share of the patches with the highest scores, above 0 and up to 1.
    threshold
        Scores above this share of the largest score, 0 to 1. Give this or `top`.
    size
        Height and width of the masks; by default that of the model's input.

    Returns
    -------
    Tensor
        Boolean masks [rows, height, width].

    Raises
    ------
    SpecError
        Unless exactly one of `top` and `threshold` is given, in its range.

    Examples
    --------
    >>> import vitreous
    >>> vit = vitreous.load("scenes")
    >>> images = vitreous.scenes.tensor(vitreous.scenes.draw("single", seed=0, index=0))[None]
    >>> attribution = vitreous.explain(vit, images, method="decompx+plus")
    >>> round(vitreous.export.masks(attribution, top=0.25).float().mean().item(), 2)
    0.25
    """
    if (top is None) == (threshold is None):
        raise SpecError("give either top= (a share of the patches) or threshold= (a share of the largest score)")
    if not isinstance(attribution, Attribution):
        raise ShapeError(f"masks are of the result of vitreous.explain, not of a {type(attribution).__name__!r}")
    maps = attribution.maps()
    if maps.ndim != 3:
        raise ShapeError("masks are of images, and these maps are of clips; .maps() has the scores of every time step")
    flat = maps.flatten(1)
    if top is not None:
        if not isinstance(top, float | int) or not 0 < top <= 1:
            raise SpecError(f"top={top!r}; a share of the patches above 0 and up to 1 would work")
        count = max(1, round(top * flat.shape[1]))
        chosen = torch.zeros_like(flat, dtype=torch.bool).scatter_(1, flat.topk(count, 1).indices, True)
    else:
        assert threshold is not None
        if not isinstance(threshold, float | int) or not 0 <= threshold <= 1:
            raise SpecError(f"threshold={threshold!r}; a share of the largest score from 0 to 1 would work")
        chosen = flat > threshold * flat.amax(1, keepdim=True)
    height_and_width = attribution.layout.size if size is None else size
    return resize_maps(chosen.view_as(maps).float(), height_and_width, "nearest") > 0.5


def coco_rle(mask: ArrayInput) -> dict[str, list[int]]:
    """A mask [height, width] as an uncompressed COCO run-length encoding.

    Parameters
    ----------
    mask
        Boolean array or tensor.

    Returns
    -------
    dict
        "size" [height, width] and "counts": lengths of runs in column-major order, beginning with a run of 0.

    Examples
    --------
    >>> import numpy as np
    >>> import vitreous
    >>> vitreous.export.coco_rle(np.array([[0, 1], [0, 1]], bool))
    {'size': [2, 2], 'counts': [2, 2]}
    """
    array = np.asarray(mask.cpu() if isinstance(mask, Tensor) else mask).astype(bool)
    if array.ndim != 2:
        raise ShapeError(f"a mask is [height, width], not {list(array.shape)}")
    flat = array.flatten(order="F")
    ends = np.flatnonzero(np.diff(np.concatenate([[False], flat, [not flat[-1] if len(flat) else False]])))
    return {"size": list(array.shape), "counts": np.diff(np.concatenate([[0], ends])).tolist()}


def alpha_image(attribution: Attribution, row: int = 0) -> Image.Image:
    """The map of a row as an image whose transparency is the strength of the score, to lay over the original.

    Red is positive and blue negative; the size is that of the model's input.

    Parameters
    ----------
    attribution
        The maps.
    row
        Row to draw.

    Returns
    -------
    PIL.Image.Image
        In the mode RGBA.

    Examples
    --------
    >>> import vitreous
    >>> vit = vitreous.load("scenes")
    >>> images = vitreous.scenes.tensor(vitreous.scenes.draw("single", seed=0, index=0))[None]
    >>> attribution = vitreous.explain(vit, images, method="decompx+plus")
    >>> vitreous.export.alpha_image(attribution).mode
    'RGBA'
    """
    from vitreous.draw.scale import scale_of

    single = attribution[row]
    scale = scale_of(single)
    values = np.nan_to_num(single.pixels()[0].float().cpu().numpy())
    colours = scale.colours(values)
    alpha = scale.strength(scale.positions(values))[..., None]
    return Image.fromarray((np.concatenate([colours, alpha], -1) * 255).round().astype(np.uint8), "RGBA")


class MapModule(torch.nn.Module):
    """Logits and map of images as one function of tensors; `onnx` exports it.

    Parameters
    ----------
    vit
        The model.
    method
        Spec of a method whose map is a fold of layers.

    Examples
    --------
    >>> import timm
    >>> import torch
    >>> import vitreous
    >>> model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=3)
    >>> module = vitreous.export.MapModule(vitreous.wrap(model), "decompx+plus")
    >>> logits, scores = module(torch.zeros(1, 3, 32, 32), torch.tensor([1]))
    >>> logits.shape, scores.shape
    (torch.Size([1, 3]), torch.Size([1, 4]))
    """

    def __init__(self, vit: ViT, method: str) -> None:
        super().__init__()
        self.vit, self.method = vit, resolve(method)
        if not isinstance(self.method.recipe, LayerSignal):
            raise SpecError(
                f"{method!r} takes more than one forward and one backward pass, so it is not exported; 'temper' and "
                "'decompx+skipplus' would work"
            )

    def forward(
        self, images: Float[Tensor, "b 3 H W"], target: Int[Tensor, " b"]
    ) -> tuple[Float[Tensor, "b c"], Float[Tensor, "b p"]]:
        """Logits of one image, and its map for a class.

        Parameters
        ----------
        images
            Images [1 3 H W].
        target
            Class index [1].

        Returns
        -------
        tuple of Tensor
            Logits [1 c] and patch scores [1 p].
        """
        probe = Probe(self.vit, images, target[:, None], self.method.chosen_question(), hold=True)
        tokens = self.method.token_scores(probe)
        return probe.head_output.logits, tokens[:, probe.layout.prefix :]


def unsupported(problem: Exception) -> str:
    """The operation that an exporter has no translation of; else the first line of its message."""
    causes: list[str] = []
    cause: BaseException | None = problem
    while cause is not None and len(causes) < 8:
        causes.append(str(cause))
        cause = cause.__cause__ or cause.__context__
    operations = re.findall(r"op='(?:\w+\.)*(\w+)'", next((text for text in causes if "No ONNX function" in text), ""))
    if operations:
        return f"the operation {operations[0]!r} has no translation to ONNX"
    return causes[0].strip().splitlines()[0]


def onnx(model: ModelInput, path: str | Path, method: str = "decompx+skipplus") -> Path:
    """Export a model together with its map: inputs `images` and `target` (class indices), outputs `logits` and `map`.

    The linearised backward pass is traced into the graph, so that a runtime without torch explains its own predictions.

    Parameters
    ----------
    model
        A `ViT`, a module with an adapter, or a name. Float32.
    path
        File to write; its suffix is .onnx.
    method
        Method of one forward and one backward pass.

    Returns
    -------
    Path
        The file. The batch size is 1.

    Raises
    ------
    ModelError
        If the model is not a `ViT`, or an operation cannot be exported.
    SpecError
        If the method takes more than one forward and backward pass.

    Examples
    --------
    >>> import timm
    >>> import torch
    >>> import vitreous
    >>> model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=3)
    >>> vitreous.export.onnx(model, "model.onnx", method="ixg+plus").name  # doctest: +SKIP
    'model.onnx'
    """
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.nn.attention import SDPBackend, sdpa_kernel

    path = Path(path)
    if path.suffix != ".onnx":
        raise SpecError(f"{path.name!r} is not an .onnx file")
    vit = as_model(model)
    if not isinstance(vit, ViT):
        raise ModelError(
            f"{vit.name!r} is not a ViT with an adapter; a ViT of timm, Hugging Face or torchvision would work"
        )
    module = MapModule(vit, method)
    images = torch.zeros(1, 3, *vit.size, dtype=vit.dtype, device=vit.device)
    target = torch.zeros(1, dtype=torch.long, device=vit.device)
    with evaluating(vit.module), sdpa_kernel(SDPBackend.MATH):
        module(images, target)  # constants that are computed once per process must not be traced
        decompositions: Any = torch.export.default_decompositions()
        graph = make_fx(module, decomposition_table=decompositions)(images, target).eval()
    try:
        program = torch.onnx.export(
            graph,
            (images, target),
            input_names=["images", "target"],
            output_names=["logits", "map"],
            dynamo=True,
            verbose=False,
        )
    except Exception as problem:
        raise ModelError(f"{vit.name!r} with {method!r} cannot be exported: {unsupported(problem)}") from problem
    assert program is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    program.save(str(path))
    return path
