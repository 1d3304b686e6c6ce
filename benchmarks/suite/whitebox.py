"""Methods that look inside, beside the bare forward and backward that their mathematics needs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from torch import Tensor

import vitreous
from suite.bed import Bed, backward
from suite.case import Case
from suite.row import Figure, Row
from vitreous.capture.forward import BlockStates
from vitreous.capture.path_gradients import AT_ONCE
from vitreous.capture.probe import Probe

GROUPS = ("one backward", "attention", "relevance", "paths")
ALIVE = "layers whose attention is alive at once"
FLOOR = "forward + backward"
PLAIN = ("ixg", "decompx", "ixg@libra", "cat", "gradcam", "fullgrad")  # no attention matrix is ever built
ATTENTION = ("genatt", "attcat", "tokentm", "gradsam", "attixg", "attngrad+plus", "attcam+plus")
QUICK = ("ixg", "decompx", "decompx+skipplus", "genatt", "tokentm", "transatt", "ig", "smoothgrad")


def explained(bed: Bed, spec: str, images: Tensor | None = None, **how: Any) -> Callable[[], Tensor]:
    images = bed.images if images is None else images
    chosen = vitreous.resolve(spec)
    how = {"batch_size": len(images), "precision": "bf16" if bed.arithmetic == "bf16" else None, **how}
    return lambda: vitreous.explain(bed.vit, images, method=chosen, **how).patches


def cases(bed: Bed) -> Iterator[Case | Figure]:
    rest = () if bed.arithmetic == "bf16" else (relevance(bed), paths(bed), figures(bed))  # not computed in bfloat16
    for case in chain(one_backward(bed), with_attention(bed), *rest):
        if bed.arithmetic == "bf16" and "bf16" not in vitreous.resolve(case.what).facts.precision:
            continue
        if not bed.quick or case.what.split("(")[0] in QUICK:
            yield case


def beside_the_floor(bed: Bed, group: str, spec: str, most: float | None, **how: Any) -> Case:
    note = {True: "held", False: "streaming"}.get(how.get("hold"), "")
    return Case(
        group,
        spec,
        FLOOR,
        explained(bed, spec, **how),
        bed.one_backward,
        at_most=most,
        pictures=(bed.batch, bed.batch),
        note=note,
    )


def one_backward(bed: Bed) -> Iterator[Case]:
    for spec in (*PLAIN, *(f"{name}+plus" for name in PLAIN if name != "cat")):  # CAT is a sum over layers already
        yield beside_the_floor(bed, "one backward", spec, 1.25)
    for spec in (f"{name}+skipplus" for name in PLAIN if name != "cat"):
        yield beside_the_floor(bed, "one backward", spec, 1.0 if bed.arithmetic == "bf16" else 0.9)


def with_attention(bed: Bed) -> Iterator[Case]:
    if bed.arithmetic == "bf16":
        for spec in ATTENTION:
            yield beside_the_floor(bed, "attention", spec, 2.0 if spec == "tokentm" else 1.6, hold=True)
        return
    for spec in ATTENTION:
        yield beside_the_floor(bed, "attention", spec, 1.6, hold=True)
        yield beside_the_floor(bed, "attention", spec, 2.2, hold=False)
    for spec in ("genatt+skipplus", "attixg+skipplus"):
        yield beside_the_floor(bed, "attention", spec, 0.9, hold=True)


def relevance(bed: Bed) -> Iterator[Case]:
    """Relevance, which runs the model twice: what does a batch save?"""
    many = 32 if bed.cuda else bed.batch
    images = bed.images.repeat(-(-many // bed.batch), 1, 1, 1)[:many]
    yield Case(
        "relevance",
        "transatt",
        f"itself: a batch of {many} against one image at a time",
        explained(bed, "transatt", images),
        explained(bed, "transatt", images[:1]),
        at_least=10 if bed.cuda else None,
        pictures=(many, 1),
        note="" if bed.cuda else "the target is a GPU's",
    )


def paths(bed: Bed) -> Iterator[Case]:
    """Gradients at many points, beside as many bare ones; few steps would weigh the two forwards at the ends too much."""
    steps = 4 if bed.size == "test" else 50 if bed.cuda or bed.size == "ti" else 20
    images = bed.few if bed.cuda else bed.images[:2]

    points, together = steps * len(images), bed.images.repeat(-(-AT_ONCE // bed.batch), 1, 1, 1)[:AT_ONCE]

    def floor() -> None:  # as many at once as the library takes
        for start in range(0, points, AT_ONCE):
            backward(bed.model, together[: points - start])

    for spec in (f"ig(steps={steps})", f"smoothgrad(samples={steps})"):
        against, sides = f"{steps} × ({FLOOR})", (explained(bed, spec, images), floor)
        yield Case("paths", spec, against, *sides, at_most=1.1, pictures=(len(images), len(images)))


# ── how many layers' attention is alive ──────────────────────────────────────────────────────────


class Watched(Probe):
    """A probe that counts the blocks whose attention matrix has not been freed."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.most, self.alive = 0, []

    def _run(self, *arguments: Any) -> BlockStates:
        step = super()._run(*arguments)
        self.alive = [reference for reference in self.alive if reference() is not None]
        if step.attention is not None:
            self.alive.append(weakref.ref(step.attention))
        self.most = max(self.most, len(self.alive))
        return step


def layers_alive(bed: Bed, spec: str, hold: bool) -> int:
    chosen = vitreous.resolve(spec)
    probe = Watched(bed.vit, bed.images[:1], None, chosen.question, hold)
    chosen(probe)
    return probe.most


def figures(bed: Bed) -> Iterator[Figure]:
    for spec in ATTENTION:
        yield Figure("attention", spec, ALIVE, lambda spec=spec: counted(bed, spec), "streaming")


def counted(bed: Bed, spec: str) -> Row:
    row = Row(
        bed.size,
        "attention",
        spec,
        ALIVE,
        1,
        bed.precision,
        targets={"at_most": 2.0},
        unit="layers",
        note="streaming",
    )
    row.ratio = float(layers_alive(bed, spec, hold=False))
    return row
