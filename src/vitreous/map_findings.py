"""What is found out about the maps of a batch after they were computed: why one is refused, or gets a caution."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitreous.capture.adapter_check import TOLERANCE
from vitreous.capture.score_function import PROBABILITIES, ScoreFunction, two_class_logits
from vitreous.core.errors import ModelError, ShapeError, VitreousError
from vitreous.methods.attribution import Attribution
from vitreous.methods.method import Method
from vitreous.methods.recipe import LayerSignal
from vitreous.models.model import BlackBox
from vitreous.models.module_structure import is_library_code
from vitreous.models.tensor_types import Images
from vitreous.models.vit import ViT

# Share of a score that may be missing in a complete map, by the precision that it was computed in: by rounding.
ROUNDING = {"float64": 1e-6, "float32": 1e-3, "tf32": 1e-2, "float16": 3e-2, "bf16": 1e-1, "bfloat16": 1e-1}
UNDEFINED = "scores that are NaN or infinite are undefined: the method divides by 0 or overflows there"
REFUSED = 0.1  # a map is refused if so much is missing, and more than ten times what rounding explains


@dataclass(frozen=True, slots=True, eq=False)
class MapFindings:
    """Properties of every map, as tensors on the device of the maps until `on_cpu` waits for them.

    Attributes
    ----------
    logits, score, scores
        Whether the logits, the explained score and all scores of the map are finite.
    missing
        Share of the score that the map of a complete method misses; 0 if the method is not complete.
    gap
        Largest difference of the logits from those of the module itself, relative to the largest one; 0 if the module is
        run as it is, or its forward cannot depend on the image.
    negligible
        As `Attribution.negligible`.
    precision
        Precision that the maps were computed in.
    """

    logits: Bool[Tensor, " r"]
    score: Bool[Tensor, " r"]
    scores: Bool[Tensor, " r"]
    missing: Float[Tensor, " r"]
    gap: Float[Tensor, " r"]
    negligible: Bool[Tensor, " r"]
    precision: str

    @classmethod
    def of(cls, attribution: Attribution, model: BlackBox, method: Method, images: Images) -> MapFindings:
        """Findings about the maps of a batch; does not wait for a device."""
        with torch.no_grad():
            finite = attribution.native_maps.flatten(1).isfinite().all(-1)
            outputs = (attribution.logits, attribution.score)
            logits, score = (
                torch.ones_like(finite) if tensor is None else tensor.reshape(len(finite), -1).isfinite().all(-1)
                for tensor in outputs
            )
            return cls(
                logits=logits,
                score=score,
                scores=finite,
                missing=missing_share(attribution, model, method),
                gap=forward_gap(attribution, model, images),
                negligible=attribution.negligible,
                precision=attribution.provenance["precision"],
            )

    def on_cpu(self, non_blocking: bool = False) -> MapFindings:
        """The same on the CPU; the copies of a GPU are complete when they are waited for if `non_blocking`."""
        tensors = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "precision"}
        return replace(self, **{name: value.to("cpu", non_blocking=non_blocking) for name, value in tensors.items()})

    def row_errors(self, model: BlackBox, method: Method, score_function: ScoreFunction) -> dict[int, VitreousError]:
        """Why maps are refused, by row; empty if none is."""
        most = max(REFUSED, 10 * ROUNDING[self.precision])
        fine = self.logits & self.score & ~(self.missing > most) & ~(self.gap > self._largest_gap(model))
        return {row: self._error(row, model, method, score_function) for row in (~fine).nonzero()[:, 0].tolist()}

    def _largest_gap(self, model: BlackBox) -> float:
        return max(TOLERANCE.get(model.dtype, 1e-3), ROUNDING[self.precision] if self.precision != "float64" else 0)

    def _error(self, row: int, model: BlackBox, method: Method, score_function: ScoreFunction) -> VitreousError:
        if not self.logits[row]:
            return ModelError(f"{model.name!r} gives logits that are not finite; are its weights loaded?")
        if not self.score[row]:
            return ShapeError(f"the explained score ({score_function.name!r}) is not finite")
        if self.gap[row] > self._largest_gap(model):
            return ModelError(
                f"{model.name!r} and its parts as Vitreous sees them disagree by {self.gap[row]:.2g} of the largest logit on this image, "
                "though not on those that they were compared on, so its forward depends on the image; vitreous.see_through(module) "
                "explains the module's own forward"
            )
        return ModelError(
            f"the shares of {method.spec!r} miss {self.missing[row]:.0%} of the score of {model.name!r} on this image, which takes "
            "another way through the model than the images that it was checked on; a method that only evaluates the model, such "
            "as 'rise', would work after vitreous.wrap(model, black_box=True)"
        )

    def cautions(self, score_function: ScoreFunction) -> list[str]:
        """What to know when reading these maps."""
        cautions = []
        if not bool(self.scores.all()):
            cautions.append(UNDEFINED)
        if bool((self.missing > ROUNDING[self.precision]).any()):
            share = f"{100 * ROUNDING[self.precision]:.4f}".rstrip("0").rstrip(".")
            cautions.append(f"the shares of a map miss more than {share} % of the score that they should add up to")
        if bool(self.negligible.any()):
            faint = "a map adds up to less than a ten-thousandth of the number that it explains, so its colours show next to nothing"
            may = "; question='logit' may have more to show" if score_function.name in PROBABILITIES else ""
            cautions.append(faint + may)
        return cautions


def forward_gap(attribution: Attribution, model: BlackBox, images: Images) -> Float[Tensor, " r"]:
    """Largest difference of the logits of a `ViT`'s parts from those of its module, relative to the module's largest one.

    Costs a forward, so it is left out for modules of known libraries as they are.
    """
    none = attribution.targets.new_zeros(len(attribution), dtype=torch.float64)
    if not isinstance(model, ViT) or attribution.logits is None or is_library_code(model.module):
        return none
    own = model.forward(images.to(model.device, model.dtype))
    own = two_class_logits(own) if model.binary else own
    if attribution.logits.shape[-1] != own.shape[-1]:  # of texts, which the module does not compute
        return none
    own = own.repeat_interleave(len(attribution) // len(own), 0)
    largest = own.abs().amax(-1).clamp(min=1e-6)
    return ((attribution.logits - own).abs().amax(-1) / largest).double()


def missing_share(attribution: Attribution, model: BlackBox, method: Method) -> Float[Tensor, " r"]:
    """Share of the score that the maps of a complete method miss; 0 if shares of this method or model need not add up.

    Relative to what shares and residual add up to, or to a hundredth of their absolute values if they cancel out.
    """
    maps, residual = attribution.patches, attribution.residual
    none = attribution.targets.new_zeros(len(attribution), dtype=torch.float64)
    if (
        maps is None
        or residual is None
        or not isinstance(method.recipe, LayerSignal)
        or method.recipe.finish is not None
    ):
        return none
    if isinstance(model, ViT) and not model.affine:  # which has a caution of its own
        return none
    parts = [part.double() for part in (maps, attribution.prefix) if part is not None]
    rest = [part.double()[:, None] for part in (attribution.bias, residual) if part is not None]
    shares = torch.cat([*parts, *rest], 1)
    scale = torch.maximum(shares.sum(-1).abs(), shares.abs().sum(-1) / 100)
    return torch.where(residual == 0, 0, residual.double().abs() / scale.clamp(min=1e-30))


def with_cautions(attribution: Attribution, cautions: list[str]) -> Attribution:
    """Add caveats to the provenance."""
    if not cautions:
        return attribution
    earlier = attribution.provenance.get("caveat", "")
    caveat = "; ".join([*([earlier] if earlier else []), *cautions])
    return replace(attribution, provenance={**attribution.provenance, "caveat": caveat})
