"""What Vitreous knows of a model: three capabilities as types, each of which includes the one before.

`BlackBox`
    Images in, outputs out: enough for methods and metrics that only evaluate the model on images.
`Network`
    The states and gradients at the inputs of its blocks, by the model's own forward: enough for gradient methods.
`ViT` (in `vitreous.models.vit`)
    The parts of a vision transformer: token removal, attention matrices and values per head.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from vitreous.core.errors import ModelError, ShapeError
from vitreous.models.eval_mode import evaluating
from vitreous.models.layout import Clip, Layout
from vitreous.models.tensor_types import Images, Logits

if TYPE_CHECKING:
    from vitreous.models.image_input import Preprocess


# ── how a module is called ───────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """Arguments of a model that takes more than images.

    Attributes
    ----------
    image
        Name of the argument that receives the images.
    others
        The other arguments. Tensors hold one entry [1 ...], which is repeated for every image.
    """

    image: str
    others: Mapping[str, Any]

    def of(self, images: Images) -> dict[str, Any]:
        """The arguments for a batch of images."""
        repeated = {
            key: value.to(images.device).expand(len(images), *value.shape[1:]) if isinstance(value, Tensor) else value
            for key, value in self.others.items()
        }
        return {self.image: images, **repeated}


def tensors_of(output: Any) -> list[Tensor]:
    """All floating-point tensors in what a model returns (a tensor, list, dict or Hugging Face output), in order."""
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() else []
    if isinstance(output, Mapping):
        return [tensor for value in output.values() for tensor in tensors_of(value)]
    if isinstance(output, list | tuple):
        return [tensor for value in output for tensor in tensors_of(value)]
    return []


def logits_of(output: Any) -> Tensor:
    """Logits of what a model returns: its field or entry `logits`, the first item of a tuple or list, or the tensor itself."""
    logits = (
        output["logits"] if isinstance(output, Mapping) and "logits" in output else getattr(output, "logits", output)
    )
    logits = logits[0] if isinstance(logits, tuple | list) and len(logits) else logits
    if not isinstance(logits, Tensor):
        entries = f" of {', '.join(map(repr, logits))}" if isinstance(logits, Mapping) and logits else ""
        raise ShapeError(
            f"the model answers with {type(logits).__name__!r}{entries}, in which no logits were found; score=… may say what to "
            "explain"
        )
    return logits


def call_module(module: nn.Module, inputs: Inputs | None, images: Images) -> Any:
    """Whatever the module returns for images; `inputs` as for `BlackBox`."""
    if inputs is not None:
        return module(**inputs.of(images))
    own = vars(module).get("forward")  # replaced in this module; not cached, since that would keep the module alive
    keyword = image_keyword(type(module)) if own is None else keyword_of(own)
    return module(images) if keyword is None else module(**{keyword: images})


@lru_cache(maxsize=256)
def image_keyword(kind: type[nn.Module]) -> str | None:
    """As `keyword_of`, for the forward of a class of modules."""
    return keyword_of(inspect.getattr_static(kind, "forward", None), of_class=True)


def keyword_of(forward: Any, of_class: bool = False) -> str | None:
    """Name of the argument that receives the images if a module's forward takes them by keyword only, else None.

    The first parameter of the function of a class is the module itself.
    """
    try:
        parameters = list(inspect.signature(forward).parameters.values())[int(of_class) :]
    except (TypeError, ValueError):  # some built-in functions have no signature
        return None
    positional = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    if any(p.kind in positional or p.kind is p.POSITIONAL_ONLY for p in parameters):
        return None
    keywords = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    required = [p.name for p in keywords if p.default is p.empty]
    usual = [p.name for p in keywords if p.name in IMAGE_KEYWORDS]
    return (required if len(required) == 1 else usual or [None])[0]


IMAGE_KEYWORDS = ("pixel_values", "images", "image", "x", "inputs", "input", "img")


@dataclass(frozen=True, slots=True, eq=False)
class ModuleForward:
    """A function from images to logits: the module's own forward in eval mode, then `read`. It can be pickled."""

    module: nn.Module
    read: Callable[[Any], Tensor]
    inputs: Inputs | None = None

    def __call__(self, images: Images) -> Tensor:
        with evaluating(self.module):
            return self.read(call_module(self.module, self.inputs, images))


# ── models ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Outputs:
    """Meaning of a model's outputs.

    Attributes
    ----------
    kind
        "classes": one logit per class, normalised by a softmax. "binary": one logit whose sigmoid is the probability of
        the second of two classes. "scalar": one number, as in regression; its value is explained.
    count
        Number of outputs of the model itself.
    """

    kind: Literal["classes", "binary", "scalar"]
    count: int

    @property
    def targets(self) -> int:
        """Number of targets that can be explained: 2 for a binary output, else `count`."""
        return 2 if self.kind == "binary" else self.count


@dataclass(frozen=True, slots=True)
class ModelOrigin:
    """Where a model comes from; None where that is not known.

    Attributes
    ----------
    library
        Library that defines the class of the module, such as "transformers".
    class_name
        Name of the module's class.
    source
        Name that the library builds the module by.
    weights
        Where the weights come from: a name of the library, a file, "pretrained" or "random".
    checkpoint
        Local file that the weights were read from.
    inner_vit
        Path of the ViT inside the module, if the module computes more than that ViT.

    Examples
    --------
    >>> import vitreous
    >>> vitreous.load("timm:vit_tiny_patch16_224", pretrained=False).origin.checkpoint is None
    True
    >>> vitreous.ModelOrigin(library="timm").updated(vitreous.ModelOrigin(weights="random")).library
    'timm'
    """

    library: str | None = None
    class_name: str | None = None
    source: str | None = None
    weights: str | None = None
    checkpoint: str | None = None
    inner_vit: str | None = None

    def updated(self, other: ModelOrigin) -> ModelOrigin:
        """This origin, with the known entries of another one in place of its own.

        Parameters
        ----------
        other
            Another origin.

        Returns
        -------
        ModelOrigin
            The merged origin.
        """
        values = {field.name: getattr(other, field.name) for field in fields(other)}
        return replace(self, **{name: value for name, value in values.items() if value is not None})

    @property
    def record(self) -> dict[str, str]:
        """Entries of a provenance record: what is known, by the keys that stored results have."""
        values = {key: getattr(self, name) for key, name in RECORD_KEYS.items()}
        return {key: value for key, value in values.items() if value is not None}


UNKNOWN = ModelOrigin()
RECORD_KEYS = {
    "library": "library",
    "class": "class_name",
    "vit": "inner_vit",
    "source": "source",
    "weights": "weights",
    "checkpoint": "checkpoint",
}  # of a provenance record → fields of `ModelOrigin`


@dataclass(frozen=True, slots=True, eq=False, kw_only=True, weakref_slot=True)
class BlackBox:
    """A model of which only the outputs for images are used.

    Parameters
    ----------
    name
        Name of the model, used in error messages, captions and files.
    module
        The original module; it is not modified.
    forward
        Logits (or one number) per image, computed by the module itself.
    layout
        Layout of the map for an image of the given (height, width).
    size
        Height and width of the images that the model was built for.
    channels
        Number of channels of an image.
    preprocess
        Conversion of images to tensors, or None if it is not known.
    classes
        Class names in the order of the outputs, or None if they are not known.
    origin
        Where the model comes from, for provenance records.
    output_type
        Meaning of the outputs; None until the model has been run on an image.
    embedding
        Reason why the outputs are an embedding and not classes; empty if they are classes.
    reason
        Reason why nothing more is known of the model: why a black box is none of the others, and why a network is no
        `ViT`; empty if that is not known.
    read
        Logits [b c], or one number per image [b 1], of what the module returns.
    inputs
        How the module is called; None: with the images as its only argument.
    declared
        Meaning of the outputs of a black box as the user has declared it: "binary", "logits" or "probabilities".
    structure
        Structure of the module when it was described (`structure_of`); None if it is not to be compared.

    Examples
    --------
    >>> import timm
    >>> import vitreous
    >>> model = timm.create_model("resnet18", pretrained=False, num_classes=2)
    >>> box = vitreous.wrap(model, black_box=True)
    >>> isinstance(box, vitreous.BlackBox), isinstance(box, vitreous.Network)
    (True, False)
    >>> import torch
    >>> box.class_name(1), box.call(torch.zeros(1, 3, 64, 64)).shape
    ('class 1', torch.Size([1, 2]))
    """

    name: str
    module: nn.Module
    forward: Callable[[Images], Logits]
    layout: Callable[[tuple[int, int]], Layout]
    size: tuple[int, int]
    channels: int = 3
    preprocess: Preprocess | None = None
    classes: tuple[str, ...] | None = None
    origin: ModelOrigin = UNKNOWN
    output_type: Outputs | None = None
    embedding: str = ""
    reason: str = ""
    read: Callable[[Any], Tensor] = logits_of
    inputs: Inputs | None = None
    declared: Literal["binary", "logits", "probabilities"] | None = None
    structure: tuple[Any, ...] | None = None

    @property
    def depth(self) -> int:
        """Number of blocks whose states are known: none of a black box."""
        return 0

    @property
    def parameter(self) -> Tensor:
        """First floating-point parameter, whose device and dtype are taken as those of the model.

        Of a module without parameters its first such buffer, or else a float32 tensor on the CPU.
        """
        values = (value for value in (*self.module.parameters(), *self.module.buffers()) if value.is_floating_point())
        return next(values, torch.empty(0, dtype=torch.float32, device="cpu"))

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return self.parameter.device

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the parameters."""
        return self.parameter.dtype

    @property
    def outputs(self) -> int:
        """Number of targets that can be explained: the number of classes (2 if binary), or 1 for a scalar output.

        Raises
        ------
        ModelError
            If the number of outputs is not known yet because the model has not been run on an image.
        """
        if self.output_type is None:
            raise ModelError(
                f"how many outputs {self.name!r} has is known once it has answered an image; "
                "vitreous.capture.adapter_check.check_adapter(vit) asks it"
            )
        return self.output_type.targets

    @property
    def binary(self) -> bool:
        """Whether the model has a single output that is the logit of the second of two classes."""
        return self.output_type is not None and self.output_type.kind == "binary"

    @property
    def scalar(self) -> bool:
        """Whether the model has a single output whose value is explained, as in regression."""
        return self.output_type is not None and self.output_type.kind == "scalar"

    def class_name(self, index: int) -> str:
        """Name of an output; "class <index>" if it has no name, or "output" for a scalar output.

        Parameters
        ----------
        index
            Index of the output.

        Returns
        -------
        str
        """
        unnamed = "output" if self.scalar else f"class {index}"
        return self.classes[index] if self.classes and index < len(self.classes) else unnamed

    def call(self, images: Images) -> Any:
        """Whatever the module returns for images.

        Parameters
        ----------
        images
            Images [b channels H W].

        Returns
        -------
        object
            A tensor, tuple, dict or an output of a library.
        """
        return call_module(self.module, self.inputs, images)

    def __repr__(self) -> str:
        height, width = self.size
        return f"{type(self).__name__}({self.name!r}, {height}x{width}, {self.dtype}, {self.device})"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Network(BlackBox):
    """A model of any architecture whose own forward is run with the backward rules of a linearisation.

    Parameters
    ----------
    blocks
        The calls of blocks, in the order of the forward. The first ones of all trunks together are all that the outputs
        depend on the image through, up to `bypass`.
    named
        Names of the blocks that were asked for; None if they were found.
    outside
        Whether the module uses inputs of blocks outside of them too, such as in `x = x + block(x)`.
    skips
        Whether a part of the image passes by later blocks, as it does where a decoder reads several stages.
    copy
        Whether the module changes tensors in place, so that recorded states have to be copied.
    missing
        Largest share of a score that was lost at a block in the completeness check, relative to the score.
    bypass
        Share of the outputs that depends on the image but not on the inputs of the first blocks.
    varying
        Share of a score that is counted as constants but changes with the image.
    clip
        Form of the clips that it takes; None for images.
    separate
        Whether images are explained one by one, since what is computed of one may be mixed with others of its batch.

    Examples
    --------
    >>> import timm
    >>> import vitreous
    >>> network = vitreous.see_through(timm.create_model("resnet18", pretrained=False, num_classes=2), size=(64, 64))
    >>> network.depth
    8
    """

    blocks: tuple[Any, ...]
    named: str | tuple[str, ...] | None = None
    outside: bool = False
    skips: bool = False
    copy: bool = False
    missing: float = 0.0
    bypass: float = 0.0
    varying: float = 0.0
    clip: Clip | None = None
    separate: bool = False

    @property
    def depth(self) -> int:
        """Number of blocks; of the longest trunk if there are several."""
        return max(self.trunks, default=0)

    @property
    def trunks(self) -> tuple[int, ...]:
        """Number of blocks of every trunk; see `NetworkBlock.trunk`."""
        return tuple(Counter(block.trunk for block in self.blocks).values())

    def __repr__(self) -> str:
        size = "x".join(map(str, (*([] if self.clip is None else [self.clip.frames]), *self.size)))
        return f"{type(self).__name__}({self.name!r}, {len(self.blocks)} blocks, {size}, {self.dtype}, {self.device})"


AnyModel = TypeVar("AnyModel", bound=BlackBox)


def with_module(model: AnyModel, module: nn.Module) -> AnyModel:
    """The same description for another module of the same architecture; not for a `ViT`, whose parts are bound."""
    changes: dict[str, Any] = {
        "module": module,
        "forward": ModuleForward(module, model.read, model.inputs),
        "structure": None,
    }
    if isinstance(model, Network):
        changes["blocks"] = tuple(replace(block, module=module.get_submodule(block.name)) for block in model.blocks)
    return replace(model, **changes)
