"""What the worker computes, as response types: facts, predictions, maps, curves, layers, images.

Everything here runs in the worker's thread.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vitreous.core.defaults import DEFAULT_METHOD
from vitreous.core.errors import Caveat, ShapeError, SpecError, VitreousError
from vitreous.web import render, responses, schemas
from vitreous.web.budget import MeasureCost, PassCost, measure_cost, plan_samples
from vitreous.web.cache import Cache
from vitreous.web.exports import export_archive, export_json, join_classes
from vitreous.web.image_store import ImageStore
from vitreous.web.model_pool import ModelPool
from vitreous.web.settings import Settings
from vitreous.web.worker import Abandoned, Worker, WouldExceedLimit

if TYPE_CHECKING:
    from torch import Tensor

    from vitreous.methods.attribution import Attribution
    from vitreous.methods.method import Method
    from vitreous.models.vit import Layout, ViT

CURVE_POINTS = 40  # closer together where few patches are removed
MAX_OPTION = 64  # a whole number in a spec may be as large, or four times its default

log = logging.getLogger("vitreous.web")

PredictPayload = tuple[str, str, tuple[int, ...]]  # model, image, removed patches


@dataclass(frozen=True, slots=True)
class ExplainPayload:
    """One map request: `method` is a spec that `Service.plan` returned."""

    model: str
    image: str
    method: str
    targets: tuple[int, ...]
    question: str

    @classmethod
    def make(cls, body: schemas.MapRequest, spec: str, targets: Sequence[int]) -> ExplainPayload:
        """Return the payload for the model, image and question of a request; classes that it names twice count once."""
        return cls(body.model, body.image, spec, tuple(dict.fromkeys(targets)), body.question)


class Service:
    """Models, images, and the worker with its cache.

    Parameters
    ----------
    settings : Settings
        Limits and models.
    cost : callable, optional
        Measures seconds per pass of a model; tests pass a constant.
    """

    def __init__(self, settings: Settings, cost: MeasureCost = measure_cost) -> None:
        self.settings = settings
        self.models, self.images = ModelPool(settings), ImageStore(settings)
        self.cache = Cache(settings.cache)
        self.worker = Worker(settings.queue, self.cache)
        self._measure_cost = cost
        self._costs: dict[str, PassCost] = {}
        self.plan_version = 0  # part of the cache key of plans

    def tensor(self, model: str, image: str) -> Tensor:
        """Return the preprocessed image [3 H W]."""
        key = ("tensor", model, image)
        tensor = self.cache.get(key)
        if tensor is None:
            tensor = self.models.preprocess(model)(self.images.get(image))
            self.cache.put(key, tensor)
        return tensor

    def about(self) -> schemas.About:
        """Return what the page needs before it can draw anything: models, methods, colour scales and limits."""
        from vitreous import __version__, list_methods
        from vitreous.draw.scale import OPACITY, QUANTILE

        settings, fields = self.settings, schemas.MethodFacts.model_fields
        return schemas.About(
            version=__version__,
            models=[schemas.ModelOffer(name=entry.name, note=entry.note) for entry in self.models.entries.values()],
            methods=[
                schemas.MethodFacts.model_validate({key: value for key, value in facts.items() if key in fields})
                for facts in list_methods()
            ],
            default=DEFAULT_METHOD,
            colours=schemas.Colours(
                signed=responses.list_colours(-1.0),
                unsigned=responses.list_colours(0.0),
                opacity=OPACITY,
                quantile=QUANTILE,
            ),
            seconds=settings.seconds,
            upload=settings.upload,
            pixels=settings.pixels,
            demo=settings.has_demo,
        )

    def facts(self, model: str) -> schemas.ModelFacts:
        """Return depth, grid and class names of a model."""
        vit = self.models.vit(model)
        names = [vit.class_name(index) for index in range(vit.outputs)]
        return schemas.ModelFacts(model=model, depth=vit.depth, grid=list(get_input_layout(vit).grid), classes=names)

    def describe_image(self, model: str, image: str) -> schemas.ImageFacts:
        """Return the size of an image, the part of it that a model sees, and the classes whose evidence is known."""
        from vitreous.models.scenes import caution_of_images

        source, original = self.images.find(image), self.images.get(image)
        size = original.height, original.width
        return schemas.ImageFacts(
            image=image,
            words="your image" if isinstance(source, bytes) else source.caption,
            known=sorted(render.find_evidence(image, model)),
            size=list(size),
            crop=render.describe_crop(size, self.models.preprocess(model)),
            caution=caution_of_images(self.models.vit(model), self.tensor(model, image)[None]),
        )

    def draw_input(self, model: str, image: str) -> bytes:
        """Return a PNG of the part of an image that a model sees."""
        return render.encode_png(render.render_input(self.images.get(image), self.models.preprocess(model)))

    def draw_crop(self, model: str, image: str) -> bytes:
        """Return a PNG of the whole image in which what a model does not see is dimmed."""
        return render.encode_png(render.render_crop(self.images.get(image), self.models.preprocess(model)))

    def plan(self, model: str, spec: str) -> schemas.SamplingPlan:
        """Return the spec to compute for a method."""
        from vitreous.bench.cost import read_model_sizes

        with errors_of_spec(spec):
            method, vit = resolve_untrusted(spec), self.models.vit(model)
            return plan_samples(
                method, lambda: read_model_sizes(vit), lambda: self.cost(model, vit), self.settings.seconds
            )

    def cost(self, model: str, vit: ViT) -> PassCost:
        """Return the measured cost of a model's passes; measured once, and again after `check_estimate` dropped it."""
        if model not in self._costs:
            self._costs[model] = self._measure_cost(vit)
        return self._costs[model]

    def check_estimate(self, model: str, plan: schemas.SamplingPlan, seconds: float) -> None:
        """Drop a model's measured cost where an explanation took less than half or more than twice its estimate.

        The machine may have been busy, or idle, when the model was measured.
        """
        if plan.seconds is None or model not in self._costs:
            return
        expected = plan.seconds * plan.share
        if not expected / 2 <= seconds <= expected * 2:
            del self._costs[model]
            self.plan_version += 1

    def predict(self, payloads: Sequence[PredictPayload]) -> list[schemas.Prediction]:
        """Return the prediction for every (model, image, removed patches); the model is the same for all."""
        import torch

        from vitreous.capture.probe import Probe

        vit = self.models.vit(payloads[0][0])
        probe = Probe(vit, torch.stack([self.tensor(model, image) for model, image, _ in payloads]))
        keep = torch.ones(len(payloads), 1, probe.layout.patches, dtype=torch.bool, device=vit.device)
        for row, (_, _, removed) in zip(keep, payloads, strict=True):
            check_patches(removed, probe.layout.patches)
            row[0, list(removed)] = False
        probabilities = probe.logits(keep)[:, 0].double().softmax(-1).cpu()
        rows = zip(probabilities, keep[:, 0], strict=True)
        return [responses.describe_prediction(vit, own_probabilities, visible) for own_probabilities, visible in rows]

    def explain(self, payloads: Sequence[ExplainPayload]) -> list[schemas.Explained]:
        """Return one map per class for every payload; they differ in image and classes only."""
        class_specific = resolve_untrusted(payloads[0].method).class_specific
        groups, seconds = self.attribute(payloads)
        return [
            responses.describe_explanation(
                rows, render.find_evidence(payload.image, payload.model), class_specific, seconds
            )
            for payload, rows in zip(payloads, groups, strict=True)
        ]

    def attribute(self, payloads: Sequence[ExplainPayload]) -> tuple[list[list[Attribution]], float]:
        """Return one attribution per class for every payload, and the seconds that they took; they are cached singly."""
        import torch

        from vitreous.front import explain

        first, count = payloads[0], len(payloads[0].targets)
        with errors_of_spec(first.method), warnings.catch_warnings():
            warnings.simplefilter("ignore", Caveat)  # stored in the provenance and shown beside the map
            method = resolve_untrusted(first.method)
            images = torch.stack([self.tensor(payload.model, payload.image) for payload in payloads])
            targets = [list(payload.targets) for payload in payloads]
            vit, precision = self.models.vit(first.model), self.settings.precision
            begun = time.monotonic()
            attribution = explain(vit, images, targets, method, first.question, precision=precision).cpu()
            seconds = time.monotonic() - begun
        rows = [attribution[row] for row in range(len(attribution))]
        for row, single in enumerate(rows):
            payload = payloads[row // count]
            self.cache.put(make_map_key(payload, payload.targets[row % count]), single)
        return [rows[start : start + count] for start in range(0, len(rows), count)], seconds

    def maps(self, payload: ExplainPayload) -> list[Attribution]:
        """Return one attribution per class, computing those that are not cached."""
        by_target = {target: self.cache.get(make_map_key(payload, target)) for target in payload.targets}
        lacking = tuple(target for target, cached in by_target.items() if cached is None)
        if lacking:
            (rows,), _ = self.attribute([replace(payload, targets=lacking)])
            by_target |= dict(zip(lacking, rows, strict=True))
        return [by_target[target] for target in payload.targets]

    def export(self, form: str, *payloads: ExplainPayload) -> bytes:
        """Return the scores of several methods in one file."""
        attributions = [join_classes(self.maps(payload)) for payload in payloads]
        return export_json(attributions) if form == "json" else export_archive(attributions)

    def curve(self, payload: ExplainPayload) -> schemas.Curve:
        """Return deletion and insertion of one map, ranked and evaluated by `vitreous.metrics`."""
        from vitreous.capture.probe import Probe
        from vitreous.metrics.model_outputs import PerturbedModel
        from vitreous.metrics.order import area_under, has_order, patch_ranks

        (attribution,) = self.maps(payload)
        if not bool(has_order(attribution).all()):
            raise ShapeError(
                f"the map of {attribution.method!r} has undefined scores, so its patches have no order and no curve"
            )
        vit = self.models.vit(payload.model)
        attribution = attribution.to(vit.device)
        images = self.tensor(payload.model, payload.image)[None]
        probe = Probe(vit, images, attribution.targets[:, None], payload.question)
        order = patch_ranks(attribution, probe)[0].argsort().tolist()
        total, model = len(order), PerturbedModel(attribution, probe)
        counts = sorted({round(total * (point / CURVE_POINTS) ** 1.5) for point in range(CURVE_POINTS + 1)})

        def predict_with(side: str, visible: list[int]) -> tuple[list[schemas.CurvePoint], float | None]:
            """Return the predictions with so many patches of one side visible, and the area under their curve."""
            answer = model.outputs_with_tokens(side, visible)
            probability, table = answer.probability("explained")[0].double().cpu(), answer.table[0].double().cpu()
            area = area_under(probability, [count / total for count in counts], "normalised")
            top, top_probability = table[:, 6].long(), table[:, 3].exp()  # the top class and its log p, see `Table`
            points = responses.list_curve_points(vit, counts, probability[0], top, top_probability)
            return points, responses.to_finite(area.item())

        deletion, deletion_area = predict_with("bottom", [total - count for count in counts])
        insertion, insertion_area = predict_with("top", counts)
        return schemas.Curve(
            method=attribution.method,
            target=payload.targets[0],
            order=order,
            deletion=deletion,
            insertion=insertion,
            deletion_area=deletion_area,
            insertion_area=insertion_area,
        )

    def layers(self, payload: ExplainPayload) -> schemas.Layers:
        """Return one map per layer, and the sum from every layer on."""
        with errors_of_spec(payload.method):
            method = resolve_untrusted(payload.method)
            vit = self.models.vit(payload.model)
            images = self.tensor(payload.model, payload.image)[None]
            return explain_layers(vit, images, method, payload.targets[0], payload.question, self.settings.precision)


def explain_layers(
    vit: ViT, images: Tensor, method: Method, target: int, question: str, precision: str | None = None
) -> schemas.Layers:
    """Return what every layer adds to a method's PLUS map, and the SkipPLUS map from every start layer."""
    import torch

    from vitreous.front import explain, inside
    from vitreous.methods.fold import FOLDS

    starts = [method.with_fold(FOLDS["skipplus"].with_options(start=layer)) for layer in range(vit.depth)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Caveat)
        views = inside(vit, images, [[target]], method.with_fold(FOLDS["plus"]), question, precision=precision)
        if views.rest is None and method.recipe.finish is None:
            totals = views.parts["sum"][0]
        else:  # shares of biases and a last step belong to the map and to no single layer
            maps = [explain(vit, images, [[target]], start, question, precision=precision).patches for start in starts]
            totals = torch.cat([patches for patches in maps if patches is not None])
    frames = [
        schemas.LayerMap(
            layer=layer, scores=responses.round_numbers(signal), start=start.spec, total=responses.round_numbers(total)
        )
        for layer, (start, signal, total) in enumerate(zip(starts, views.parts["signal"][0], totals, strict=True))
    ]
    grid = list(views.whole.layout.grid)
    return schemas.Layers(method=method.spec, target=target, grid=grid, signed=views.whole.signed, frames=frames)


def get_input_layout(vit: ViT) -> Layout:
    """Return the patches of a preprocessed image, whose size an option may have changed."""
    return vit.layout(vit.size if vit.preprocess is None else vit.preprocess.size)


def make_map_key(payload: ExplainPayload, target: int) -> tuple[Any, ...]:
    return "map", payload.model, payload.image, payload.method, target, payload.question


def check_patches(removed: Sequence[int], patches: int) -> None:
    """Raise `ShapeError` for a patch index outside the grid."""
    if removed and max(removed) >= patches:
        raise ShapeError(f"patch {max(removed)} does not exist: the model has patches 0 to {patches - 1}")


def resolve_untrusted(spec: str) -> Method:
    """Resolve a method from a request; whole numbers that would ask for unbounded work are refused."""
    from vitreous.methods.method import METHODS
    from vitreous.methods.spec import resolve

    method = resolve(spec)
    defaults = METHODS[method.name].known_options
    for key, value in {**method.options, **({} if method.fold is None else method.fold.options)}.items():
        default = defaults.get(key)
        most = max(MAX_OPTION, 4 * default if isinstance(default, int) else 0)
        for number in iterate_numbers(value):
            if abs(number) > most:
                raise SpecError(f"{key}={number} is more than the playground computes; up to {most} would work")
    return method


def iterate_numbers(value: Any) -> Iterator[int]:
    """Yield the whole numbers in a literal, however deep."""
    if isinstance(value, int):
        yield value
    elif isinstance(value, dict):
        yield from iterate_numbers([*value.keys(), *value.values()])
    elif isinstance(value, Iterable) and not isinstance(value, str | bytes):
        for item in value:
            yield from iterate_numbers(item)


@contextmanager
def errors_of_spec(spec: str) -> Iterator[None]:
    """Turn unexpected exceptions into `SpecError` where the request chose the options.

    A method with its own options must not fail; one with options from a request may fail in ways that no check foresaw. Both
    are logged.
    """
    try:
        yield
    except (VitreousError, Abandoned, WouldExceedLimit):
        raise
    except Exception as problem:
        if "(" not in spec:
            raise
        log.exception("%r failed", spec)
        name = spec.split("(", maxsplit=1)[0]
        raise SpecError(
            f"{spec!r} cannot be computed with these options ({type(problem).__name__}); "
            f"{name!r} without options would work, and `vitreous methods {name}` lists them"
        ) from None
