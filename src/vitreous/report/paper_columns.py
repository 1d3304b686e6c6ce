"""Columns of the published tables, and the metrics that fill them."""

from __future__ import annotations

from vitreous.report.column_match import EXPLAINED, PublishedColumn

BASELINES = {"Mean": "mean", "Blur": "blur", "Black": "black", "Rand": "random"}
# TokenTM, table 4
VARIANTS = {
    "tokentm(preset='baseline')": "Baseline",
    "tokentm(preset='af')": "+ AF",
    "tokentm(preset='af+l')": "+ AF + L",
    "tokentm": "+ AF + L + NECC",
    "tokentm(preset='full')": "+ AF + L + NECC",
}
SEGMENTATION = (
    PublishedColumn("Pix. Acc.", "pixel_accuracy", percent=True),
    PublishedColumn("mAP", "map_two_channel", percent=True),
    PublishedColumn("mIoU", "miou", percent=True),
)
ACCURACY = tuple(
    PublishedColumn(f"{word} ({explained})", metric, explained=explained, percent=True)
    for explained in EXPLAINED
    for word, metric in (("Neg.", "negative_auc"), ("Pos.", "positive_auc"))
)
# the paper does not say which class it explains in table 4: the predicted one, or the label if there is no other
PERTURBATION = {
    explained: [
        PublishedColumn(word, metric, explained=explained, percent=True)
        for word, metric in (("Neg.", "negative_auc"), ("Pos.", "positive_auc"))
    ]
    for explained in EXPLAINED
}
INSERTION = {
    title: [PublishedColumn(word, metric, (("baseline", baseline),)) for word, baseline in BASELINES.items()]
    for title, metric in (
        ("Insertion", "insertion"),
        ("Deletion", "deletion"),
        ("Insertion - Deletion", "insertion_minus_deletion"),
    )
}
PROBABILITY = (PublishedColumn("AOPC", "aopc"), PublishedColumn("LOdds", "lodds"))
POINTING = (PublishedColumn("pointing game", "pointing_game"),)
SENSITIVITY = (PublishedColumn("max sensitivity", "max_sensitivity"),)
SPARSENESS = (PublishedColumn("sparseness", "sparseness"),)
STRENGTHS = (
    PublishedColumn("Deletion Accuracy", "deletion_accuracy", percent=True),
    PublishedColumn("Deletion AOPC", "deletion_aopc", percent=True),
    PublishedColumn("Insertion Accuracy", "insertion_accuracy", percent=True),
    PublishedColumn("Insertion AOPC", "insertion_aopc", percent=True),
    PublishedColumn("AP", "ap", percent=True),
)
