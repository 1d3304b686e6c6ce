"""What the worker computes: answers, maps, curves, films. Everything here runs in its one thread."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vitreous.core.errors import Caveat, ShapeError, SpecError
from vitreous.web.cache import Cache
from vitreous.web.pictures import Pictures
from vitreous.web.roster import Roster
from vitreous.web.settings import Settings
from vitreous.web.worker import Worker

if TYPE_CHECKING:
    from torch import Tensor

    from vitreous.methods.attribution import Attribution
    from vitreous.methods.method import Method

STEPS = 40  # points of a curve, close together where few patches are gone
MOST = 64  # a whole number in a spec may be as large, or four times its default


class Studio:
    """Models, pictures, and what is known of them."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.roster, self.pictures = Roster(settings), Pictures(settings)
        self.cache = Cache(settings.cache)
        self.worker = Worker(settings.queue, self.cache)

    def image(self, model: str, picture: str) -> Tensor:
        """What the model sees of a picture, [3 H W]."""
        key = ("image", model, picture)
        found = self.cache.get(key)
        if found is None:
            preprocess = self.roster.vit(model).preprocess
            assert preprocess is not None
            found = preprocess(self.pictures.get(picture))
            self.cache.put(key, found)
        return found

    def says(self, asked: Sequence[tuple[str, str, tuple[int, ...]]]) -> list[Tensor]:
        """Probabilities [c] for every (model, picture, removed patches); one model, one batch."""
        import torch

        from vitreous.capture.probe import Probe

        vit = self.roster.vit(asked[0][0])
        probe = Probe(vit, torch.stack([self.image(model, picture) for model, picture, _ in asked]))
        keep = torch.ones(len(asked), 1, probe.layout.patches, dtype=torch.bool, device=vit.device)
        for row, (_, _, removed) in zip(keep, asked, strict=True):
            check_patches(removed, probe.layout.patches)
            row[0, list(removed)] = False
        return list(probe.logits(keep)[:, 0].double().softmax(-1).cpu())

    def explain(self, asked: Sequence[tuple[str, str, str, tuple[int, ...], str]]) -> list[dict[str, Any]]:
        """One attribution per class for every (model, picture, method, classes, question); pictures in one batch."""
        import torch

        from vitreous.front import explain

        model, _, method, _, question = asked[0]
        vit, made = self.roster.vit(model), allowed(method)
        images = torch.stack([self.image(model, one[1]) for one in asked])
        begun = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Caveat)  # they are in the provenance, and shown beside the map
            found = explain(vit, images, [list(one[3]) for one in asked], made, question).cpu()
        seconds = time.monotonic() - begun
        rows = [found[row] for row in range(len(found))]
        k = len(asked[0][3])
        for row, attribution in enumerate(rows):
            self.cache.put(map_key(*asked[row // k][:3], asked[row // k][3][row % k], question), attribution)
        facts = {"class_specific": made.class_specific, "seconds": seconds}
        return [{"rows": rows[i * k : (i + 1) * k], **facts} for i in range(len(asked))]

    def maps(self, model: str, picture: str, method: str, targets: Sequence[int], question: str) -> list[Attribution]:
        """The same for one picture, of what is not known yet."""
        known = {t: self.cache.get(map_key(model, picture, method, t, question)) for t in targets}
        lacking = tuple(t for t, found in known.items() if found is None)
        if lacking:
            (found,) = self.explain([(model, picture, method, lacking, question)])
            known |= dict(zip(lacking, found["rows"], strict=True))
        return [known[t] for t in targets]

    def curve(self, asked: Sequence[tuple[str, str, str, int, str]]) -> list[dict[str, Any]]:
        """Probabilities as the highest patches leave, and as they alone enter: nested masks, one batch."""
        import torch

        from vitreous.capture.probe import Probe

        (model, picture, method, target, question), *_ = asked
        (found,) = self.maps(model, picture, method, (target,), question)
        scores = patches_of(found)[0].double().nan_to_num(-torch.inf, torch.inf, -torch.inf)
        order = scores.argsort(descending=True, stable=True)
        rank = order.argsort()
        count = len(order)
        counts = torch.tensor(sorted({round(count * (i / STEPS) ** 1.5) for i in range(STEPS + 1)}))
        highest = rank[None] < counts[:, None]  # [s p]
        probe = Probe(self.roster.vit(model), self.image(model, picture)[None])
        keep = torch.cat([~highest, highest])[None].to(probe.vit.device)
        said = probe.logits(keep)[0].double().softmax(-1).cpu()
        deletion, insertion = said.split(len(counts))
        curves = {"order": order.tolist(), "counts": counts.tolist(), "deletion": deletion, "insertion": insertion}
        return [{"method": found.method, **curves}]

    def film(self, asked: Sequence[tuple[str, str, str, int, str]]) -> list[dict[str, Any]]:
        """Every layer's own map, and the sum from every layer on."""
        from vitreous.web.film import shoot

        (model, picture, method, target, question), *_ = asked
        vit = self.roster.vit(model)
        return [shoot(vit, self.image(model, picture)[None], allowed(method), target, question)]

    def facts(self, asked: Sequence[str]) -> list[dict[str, Any]]:
        """Depth, grid and class names of a model."""
        vit = self.roster.vit(asked[0])
        names = [vit.class_name(index) for index in range(vit.outputs)]
        return [{"depth": vit.depth, "grid": list(vit.layout(vit.size).grid), "classes": names}]


def map_key(model: str, picture: str, method: str, target: int, question: str) -> tuple[Any, ...]:
    return "map", model, picture, method, target, question


def patches_of(found: Attribution) -> Tensor:
    if found.patches is None:
        raise ShapeError(f"{found.method!r} has no scores of patches")
    return found.patches


def check_patches(removed: Sequence[int], patches: int) -> None:
    if removed and max(removed) >= patches:
        raise ShapeError(f"patch {max(removed)} cannot leave: the model has patches 0 to {patches - 1}")


def allowed(spec: str) -> Method:
    """A method from a stranger: numbers that ask for boundless work are refused."""
    from vitreous.methods.method import METHODS
    from vitreous.methods.spec import resolve

    made = resolve(spec)
    usual = {**METHODS[made.name].known_options}
    for key, value in {**made.options, **({} if made.fold is None else made.fold.options)}.items():
        default = usual.get(key)
        most = max(MOST, 4 * default if isinstance(default, int) else 0)
        for number in value if isinstance(value, list | tuple) else (value,):
            if isinstance(number, int) and abs(number) > most:
                raise SpecError(f"{key}={number} is more than the playground computes; up to {most} would work")
    return made
