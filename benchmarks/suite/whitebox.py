"""White-box methods, relative to a plain forward and backward pass."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from torch import Tensor

import vitreous
from suite.case import Case
from suite.row import Figure, Row
from suite.workload import Workload, run_backward
from vitreous.capture.forward import BlockStates
from vitreous.capture.path_gradients import AT_ONCE
from vitreous.capture.probe import Probe

GROUPS = ("one backward", "attention", "relevance", "paths")
ALIVE = "layers whose attention is alive at once"
FLOOR = "forward + backward"
PLAIN = ("ixg", "decompx", "ixg@libra", "cat", "gradcam", "fullgrad")  # methods without attention matrices
ATTENTION = ("genatt", "attcat", "tokentm", "gradsam", "attixg", "attngrad+plus", "attcam+plus")
QUICK = ("ixg", "decompx", "decompx+skipplus", "genatt", "tokentm", "transatt", "ig", "smoothgrad")


def make_explainer(workload: Workload, spec: str, images: Tensor | None = None, **how: Any) -> Callable[[], Tensor]:
    images = workload.images if images is None else images
    chosen = vitreous.resolve(spec)
    how = {"batch_size": len(images), "precision": "bf16" if workload.arithmetic == "bf16" else None, **how}
    return lambda: vitreous.explain(workload.vit, images, method=chosen, **how).patches


def cases(workload: Workload) -> Iterator[Case | Figure]:
    rest = (
        ()
        if workload.arithmetic == "bf16"
        else (list_relevance(workload), list_paths(workload), list_figures(workload))
    )  # not computed in bfloat16
    for case in chain(list_one_backward(workload), list_attention(workload), *rest):
        if workload.arithmetic == "bf16" and "bf16" not in vitreous.resolve(case.what).facts.precision:
            continue
        if not workload.quick or case.what.split("(")[0] in QUICK:
            yield case


def make_floor_case(workload: Workload, group: str, spec: str, most: float | None, **how: Any) -> Case:
    note = {True: "held", False: "streaming"}.get(how.get("hold"), "")
    return Case(
        group,
        spec,
        FLOOR,
        make_explainer(workload, spec, **how),
        workload.one_backward,
        at_most=most,
        pictures=(workload.batch, workload.batch),
        note=note,
    )


def list_one_backward(workload: Workload) -> Iterator[Case]:
    for spec in (*PLAIN, *(f"{name}+plus" for name in PLAIN if name != "cat")):  # CAT is already a sum over layers
        yield make_floor_case(workload, "one backward", spec, 1.25)
    for spec in (f"{name}+skipplus" for name in PLAIN if name != "cat"):
        yield make_floor_case(workload, "one backward", spec, 1.0 if workload.arithmetic == "bf16" else 0.9)


def list_attention(workload: Workload) -> Iterator[Case]:
    if workload.arithmetic == "bf16":
        for spec in ATTENTION:
            yield make_floor_case(workload, "attention", spec, 2.0 if spec == "tokentm" else 1.6, hold=True)
        return
    for spec in ATTENTION:
        yield make_floor_case(workload, "attention", spec, 1.6, hold=True)
        yield make_floor_case(workload, "attention", spec, 2.2, hold=False)
    for spec in ("genatt+skipplus", "attixg+skipplus"):
        yield make_floor_case(workload, "attention", spec, 0.9, hold=True)


def list_relevance(workload: Workload) -> Iterator[Case]:
    """Relevance methods: a batch relative to single images."""
    many = 32 if workload.cuda else workload.batch
    images = workload.images.repeat(-(-many // workload.batch), 1, 1, 1)[:many]
    yield Case(
        "relevance",
        "transatt",
        f"itself: a batch of {many} against one image at a time",
        make_explainer(workload, "transatt", images),
        make_explainer(workload, "transatt", images[:1]),
        at_least=10 if workload.cuda else None,
        pictures=(many, 1),
        note="" if workload.cuda else "the target is a GPU's",
    )


def list_paths(workload: Workload) -> Iterator[Case]:
    """Gradients at many points of a path, relative to as many plain ones; with few steps the two forward passes at the ends would dominate."""
    steps = 4 if workload.size == "test" else 50 if workload.cuda or workload.size == "ti" else 20
    images = workload.few if workload.cuda else workload.images[:2]

    points, together = steps * len(images), workload.images.repeat(-(-AT_ONCE // workload.batch), 1, 1, 1)[:AT_ONCE]

    def floor() -> None:  # in batches of the size that the library uses
        for start in range(0, points, AT_ONCE):
            run_backward(workload.model, together[: points - start])

    for spec in (f"ig(steps={steps})", f"smoothgrad(samples={steps})"):
        against, sides = f"{steps} × ({FLOOR})", (make_explainer(workload, spec, images), floor)
        yield Case("paths", spec, against, *sides, at_most=1.1, pictures=(len(images), len(images)))


# ── how many layers' attention is alive ──────────────────────────────────────────────────────────


class AttentionCountingProbe(Probe):
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


def count_layers_alive(workload: Workload, spec: str, hold: bool) -> int:
    chosen = vitreous.resolve(spec)
    probe = AttentionCountingProbe(workload.vit, workload.images[:1], None, chosen.question, hold)
    chosen(probe)
    return probe.most


def list_figures(workload: Workload) -> Iterator[Figure]:
    for spec in ATTENTION:
        yield Figure("attention", spec, ALIVE, lambda spec=spec: measure_layers_alive(workload, spec), "streaming")


def measure_layers_alive(workload: Workload, spec: str) -> Row:
    row = Row(
        workload.size,
        "attention",
        spec,
        ALIVE,
        1,
        workload.precision,
        targets={"at_most": 2.0},
        unit="layers",
        note="streaming",
    )
    row.ratio = float(count_layers_alive(workload, spec, hold=False))
    return row
