"""Methods relative to straightforward implementations (`research.py`), as papers publish them: one image at a time, all vectors explicit."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

import vitreous
from suite.case import Case
from suite.research import compute_decompx, compute_globenc, compute_tis
from suite.sides import explain_batch, worst_spearman
from suite.workload import Workload
from vitreous.capture.memory import free_bytes

GAINS = {"b": (100, 20), "eva": (500, None)}  # faster, smaller: on a CUDA device
MANY = 32  # images in a batch there
GROUPS = ("stand-ins",)


def count_fitting_sources(workload: Workload, tokens: int, width: int) -> int:
    """Number of sources for which [n s 4d] and its copies fit into half of the free memory."""
    bytes_per_source = tokens * width * 4 * workload.images.element_size() * 4
    return max(1, min(tokens, int(free_bytes(workload.images.device) / 2 // bytes_per_source)))


def cases(workload: Workload) -> Iterator[Case]:
    model: Any = workload.model
    if workload.cuda and workload.batch < MANY:
        workload = replace(
            workload, images=workload.images.repeat(-(-MANY // workload.batch), 1, 1, 1)[:MANY], batch=MANY
        )
    picture, tokens, width = workload.images[0], workload.vit.layout(workload.vit.size).tokens, model.embed_dim
    target = int(workload.vit.forward(picture[None]).argmax())
    spec = "decompx+skipplus"
    # on a CPU only a few sources are timed: they are independent and cost the same
    sources = torch.arange(tokens, device=workload.device)[
        : None if workload.cuda or workload.size == "test" else 4 if workload.quick else 8
    ]
    chunk = min(count_fitting_sources(workload, tokens, width), len(sources))
    partly = "" if len(sources) == tokens else f"{len(sources)} of {tokens} sources timed, which are independent; "
    partly += "" if chunk == len(sources) else f"{chunk} sources at a time, all do not fit; "
    partly += f"ours in a batch of {workload.batch}; " if workload.cuda else ""
    faster, smaller = GAINS.get(workload.size, (None, None)) if workload.cuda else (None, None)
    compared = sources[:: max(1, len(sources) // 32)]  # a sample of them for the agreement

    def agreeing(restart: bool) -> float:
        slow = compute_decompx(model, picture, target, restart=restart, sources=compared, chunk=chunk)
        return worst_spearman(compute_scores(workload, spec)[compared][None], slow[None])

    for restart in (True, False):

        def slowly(restart: bool = restart) -> Tensor:
            return compute_decompx(model, picture, target, restart=restart, sources=sources, chunk=chunk)

        yield Case(
            "stand-ins",
            spec,
            "explicit propagation" + (", from every start" if restart else ", one pass for all starts"),
            lambda: explain_batch(workload, spec),
            slowly,
            at_least=faster if restart else None,
            smaller=smaller if restart else None,
            pictures=(workload.batch, len(sources) / tokens),
            agree=partial(agreeing, restart),
            agreement=0.999,
            note=partly + ("PLUS as defined" if restart else "the fastest with explicit vectors"),
        )
    yield Case(
        "stand-ins",
        "globenc",
        "N×N×d vectors",
        lambda: explain_batch(workload, "globenc"),
        lambda: compute_globenc(model, picture),
        at_least=5,
        pictures=(workload.batch, 1),
        agree=partial(compare_globenc, workload),
        agreement=0.999,
    )
    masks, many = 16 if workload.size == "test" else 64 if workload.quick else 256, len(workload.few)
    yield Case(
        "stand-ins",
        f"tis(masks={masks})",
        "one image, 16 masks at a time",
        lambda: explain_batch(workload, f"tis(masks={masks})", many),
        lambda: compute_tis(model, picture, target, masks),
        pictures=(many, 1),
        agree=lambda: worst_spearman(
            explain_batch(workload, f"tis(masks={masks})", 1).patches, compute_tis(model, picture, target, masks)[None]
        ),
        note="in float32 clusters may differ; in float64 the values are the same",
    )


def compare_globenc(workload: Workload) -> float:
    """Agreement of GlobEnc of the first image, in float64: products of lengths over 24 layers exceed the range of float32."""
    model = copy.deepcopy(workload.model).double()
    exact = replace(workload, model=model, vit=vitreous.wrap(model), images=workload.images[:1].double(), batch=1)
    return worst_spearman(compute_scores(exact, "globenc")[None], compute_globenc(model, exact.images[0])[None])


def compute_scores(workload: Workload, spec: str) -> Tensor:
    """Prefix and patches of the first image."""
    attribution = explain_batch(workload, spec, 1)
    assert attribution.prefix is not None
    return torch.cat([attribution.prefix, attribution.patches], 1)[0]
