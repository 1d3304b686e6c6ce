"""Single images of a plan, question by question: what a run of somebody else's must give again, not only on average."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from study.sheets import Sheet

PICTURES = 3  # the first of a plan
SLICES = {  # methods and metrics
    "beyond": (("genatt", "decompx+skipplus", "temper"), ("deletion_aopc", "insertion_aopc")),
    "scenes": (("genatt", "decompx+skipplus", "temper"), ("ap", "deletion_aopc", "insertion_aopc")),
    "scenes-pair": (("genatt", "decompx+skipplus", "temper"), ("ap", "class_discrimination", "deletion_aopc")),
}


@dataclass(frozen=True, slots=True)
class Single:
    """One method by one metric on one question about one image."""

    model: str
    dataset: str
    picture: str
    question: int  # of that image
    method: str
    metric: str
    value: float


def select_singles(plan: str, sheets: Sequence[Sheet]) -> list[Single]:
    """The first images of a plan."""
    methods, metrics = SLICES[plan]
    rows = []
    for sheet in sheets:
        pictures = list(dict.fromkeys(sheet.pictures))[:PICTURES]
        for method in methods if sheet.metric in metrics else ():
            if method in sheet.methods:
                scores = sheet.row(method)["score"]
                for picture in pictures:
                    own = [place for place, name in enumerate(sheet.pictures) if name == picture]
                    where = (sheet.model, sheet.dataset, picture)
                    rows += [
                        Single(*where, question, method, sheet.metric, float(scores[place]))
                        for question, place in enumerate(own)
                    ]
    return rows
