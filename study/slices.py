"""Scores of single images of a plan, which tests compute again: a run must reproduce them, not only their means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from study.sheets import Sheet

IMAGES_PER_PLAN = 3  # the first images of a plan
SLICES = {  # methods and metrics
    "beyond": (("genatt", "decompx+skipplus", "temper"), ("deletion_aopc", "insertion_aopc")),
    "scenes": (("genatt", "decompx+skipplus", "temper"), ("ap", "deletion_aopc", "insertion_aopc")),
    "scenes-pair": (("genatt", "decompx+skipplus", "temper"), ("ap", "class_discrimination", "deletion_aopc")),
}


@dataclass(frozen=True, slots=True)
class Single:
    """Score of a method by a metric for a target of an image."""

    model: str
    dataset: str
    picture: str
    question: int  # index of the target within its image
    method: str
    metric: str
    value: float


def select_singles(plan: str, sheets: Sequence[Sheet]) -> list[Single]:
    """Scores of the first images of a plan."""
    methods, metrics = SLICES[plan]
    rows = []
    for sheet in sheets:
        images = list(dict.fromkeys(sheet.images))[:IMAGES_PER_PLAN]
        for method in methods if sheet.metric in metrics else ():
            if method in sheet.methods:
                scores = sheet.row(method)["score"]
                for image in images:
                    own = [place for place, name in enumerate(sheet.images) if name == image]
                    where = (sheet.model, sheet.dataset, image)
                    rows += [
                        Single(*where, question, method, sheet.metric, float(scores[place]))
                        for question, place in enumerate(own)
                    ]
    return rows
