"""Beside research code (`research.py`), which stands in for what papers publish: one image at a time, all vectors explicit."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

import vitreous
from suite.bed import Bed
from suite.case import Case
from suite.research import decompx_slowly, globenc_slowly, tis_slowly
from suite.sides import explained, worst_spearman
from vitreous.capture.memory import free_bytes

GAINS = {"b": (100, 20), "eva": (500, None)}  # faster, smaller: on a CUDA device
MANY = 32  # images in a batch there
GROUPS = ("stand-ins",)


def that_fit(bed: Bed, tokens: int, width: int) -> int:
    """How many sources keep [n s 4d] and its copies within half of what is free."""
    bytes_per_source = tokens * width * 4 * bed.images.element_size() * 4
    return max(1, min(tokens, int(free_bytes(bed.images.device) / 2 // bytes_per_source)))


def cases(bed: Bed) -> Iterator[Case]:
    model: Any = bed.model
    if bed.cuda and bed.batch < MANY:
        bed = replace(bed, images=bed.images.repeat(-(-MANY // bed.batch), 1, 1, 1)[:MANY], batch=MANY)
    picture, tokens, width = bed.images[0], bed.vit.layout(bed.vit.size).tokens, model.embed_dim
    target = int(bed.vit.forward(picture[None]).argmax())
    spec = "decompx+skipplus"
    # on a CPU a few sources stand for all: they do not meet, and cost the same
    sources = torch.arange(tokens, device=bed.device)[
        : None if bed.cuda or bed.size == "test" else 4 if bed.quick else 8
    ]
    chunk = min(that_fit(bed, tokens, width), len(sources))
    partly = "" if len(sources) == tokens else f"{len(sources)} of {tokens} sources timed, which do not meet; "
    partly += "" if chunk == len(sources) else f"{chunk} sources at a time, all do not fit; "
    partly += f"ours in a batch of {bed.batch}; " if bed.cuda else ""
    faster, smaller = GAINS.get(bed.size, (None, None)) if bed.cuda else (None, None)
    compared = sources[:: max(1, len(sources) // 32)]  # enough of them to compare

    def agreeing(restart: bool) -> float:
        slow = decompx_slowly(model, picture, target, restart=restart, sources=compared, chunk=chunk)
        return worst_spearman(scores_of(bed, spec)[compared][None], slow[None])

    for restart in (True, False):

        def slowly(restart: bool = restart) -> Tensor:
            return decompx_slowly(model, picture, target, restart=restart, sources=sources, chunk=chunk)

        yield Case(
            "stand-ins",
            spec,
            "explicit propagation" + (", from every start" if restart else ", one pass for all starts"),
            lambda: explained(bed, spec),
            slowly,
            at_least=faster if restart else None,
            smaller=smaller if restart else None,
            pictures=(bed.batch, len(sources) / tokens),
            agree=partial(agreeing, restart),
            agreement=0.999,
            note=partly + ("PLUS as it is defined" if restart else "the least that explicit vectors allow"),
        )
    yield Case(
        "stand-ins",
        "globenc",
        "N×N×d vectors",
        lambda: explained(bed, "globenc"),
        lambda: globenc_slowly(model, picture),
        at_least=5,
        pictures=(bed.batch, 1),
        agree=partial(same_lengths, bed),
        agreement=0.999,
    )
    masks, many = 16 if bed.size == "test" else 64 if bed.quick else 256, len(bed.few)
    yield Case(
        "stand-ins",
        f"tis(masks={masks})",
        "one image, 16 masks at a time",
        lambda: explained(bed, f"tis(masks={masks})", many),
        lambda: tis_slowly(model, picture, target, masks),
        pictures=(many, 1),
        agree=lambda: worst_spearman(
            explained(bed, f"tis(masks={masks})", 1).patches, tis_slowly(model, picture, target, masks)[None]
        ),
        note="in float32 a cluster may take another turn; in float64 the numbers are the same",
    )


def same_lengths(bed: Bed) -> float:
    """How far GlobEnc of the first image agrees, in float64: lengths of 24 layers multiply to more than float32 can say."""
    model = copy.deepcopy(bed.model).double()
    exact = replace(bed, model=model, vit=vitreous.wrap(model), images=bed.images[:1].double(), batch=1)
    return worst_spearman(scores_of(exact, "globenc")[None], globenc_slowly(model, exact.images[0])[None])


def scores_of(bed: Bed, spec: str) -> Tensor:
    """Prefix and patches of the first image."""
    attribution = explained(bed, spec, 1)
    assert attribution.prefix is not None
    return torch.cat([attribution.prefix, attribution.patches], 1)[0]
