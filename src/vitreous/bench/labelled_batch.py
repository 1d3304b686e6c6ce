"""A batch of images with target classes and annotations, as input of methods and metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitreous.bench.keys import hash_tensor
from vitreous.capture.black_box_probe import BlackBoxProbe
from vitreous.capture.probe import probe_of
from vitreous.capture.targets import class_indices
from vitreous.core.digests import digest
from vitreous.data import Batch
from vitreous.metrics.metric import Metric
from vitreous.models.model import BlackBox
from vitreous.models.tensor_types import Images

if TYPE_CHECKING:
    from vitreous.bench.plan import Targets

EVIDENCE = ("labels", "objects", "rivals", "boxes")


@dataclass(frozen=True, eq=False)
class LabelledBatch:
    """A batch of b images with k target classes each, that is, b · k rows; the rows of an image are consecutive.

    Parameters
    ----------
    vit
        The model.
    keys, places
        Key and index of every image in its dataset.
    images
        Preprocessed images.
    targets
        Target classes.
    roles
        Roles of the k target columns.
    labels
        True classes; −1 if unknown.
    logits
        Logits of the whole images.
    given
        Annotations that metrics may read, one entry per row.
    front
        The probe that computed the logits, if it has the same targets.
    """

    vit: BlackBox
    keys: tuple[str, ...]
    places: tuple[int, ...]
    images: Images
    targets: Int[Tensor, "b k"]
    roles: tuple[str, ...]
    labels: Int[Tensor, " b"]
    logits: Float[Tensor, "b c"]
    given: dict[str, Any]
    front: BlackBoxProbe | None = None

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def targets_per_image(self) -> int:
        """Number of target classes, and so of rows, per image."""
        return len(self.roles)

    @property
    def rows(self) -> int:
        return len(self) * self.targets_per_image

    @cached_property
    def probe(self) -> BlackBoxProbe:
        """Probe whose forward pass all methods share."""
        probe = self.front or probe_of(self.vit, self.images, self.targets)
        _ = probe.head_output  # run the forward pass here, so that it is not timed with the first method
        return probe

    @property
    def labelled(self) -> Bool[Tensor, " b"]:
        """Mask of the images whose true class is known and is one of the model's classes."""
        return (self.labels >= 0) & (self.labels < self.vit.outputs)

    @cached_property
    def pixels(self) -> list[str]:
        """Hash of every image."""
        return [hash_tensor(image) for image in self.images]

    def only(self, indices: Sequence[int], columns: Sequence[int] | None = None) -> LabelledBatch:
        """Subset of the images and, if `columns` is given, of their target columns."""
        kept_columns = range(self.targets_per_image) if columns is None else columns
        if len(indices) == len(self) and len(kept_columns) == self.targets_per_image:
            return self
        chosen = torch.tensor(indices)
        rows = [index * self.targets_per_image + column for index in indices for column in kept_columns]
        return replace(
            self,
            keys=tuple(self.keys[p] for p in indices),
            places=tuple(self.places[p] for p in indices),
            images=self.images[chosen],
            targets=self.targets[chosen][:, list(kept_columns)],
            roles=tuple(self.roles[column] for column in kept_columns),
            labels=self.labels[chosen],
            logits=self.logits[chosen],
            given={
                name: [value[row] for row in rows] if isinstance(value, list) else value[torch.tensor(rows)]
                for name, value in self.given.items()
            },
            front=None,
        )

    @cached_property
    def hashes(self) -> dict[str, list[str]]:
        """Hashes of the annotations of every row, by name."""
        return {
            name: ["" if annotation is None else hash_tensor(torch.as_tensor(annotation)) for annotation in value]
            for name, value in self.given.items()
        }

    def evidence(self, row: int, metric: Metric | None) -> str:
        """Hash of the annotations that a metric reads for this row; an empty string if it reads none."""
        takes = () if metric is None else metric.takes
        read = [name for name in EVIDENCE if name in takes and name in self.given]
        return digest(*(self.hashes[name][row].encode() for name in read)) if read else ""

    def about(self, row: int) -> dict[str, Any]:
        """Columns that describe the image and the target of a row."""
        index, column = divmod(row, self.targets_per_image)
        target = int(self.targets[index, column])
        return {
            "image": self.keys[index],
            "index": self.places[index],
            "target": target,
            "target_name": self.vit.class_name(target),
            "role": self.roles[column],
            "label": int(self.labels[index]),
            "predicted": int(self.logits[index].argmax()),
            "probability": math.nan if self.vit.scalar else float(self.logits[index].double().softmax(-1)[target]),
            "pixels": self.pixels[index],
        }


def prepare_batch(
    model: BlackBox, batch: Batch, places: Sequence[int], target_spec: Targets
) -> tuple[LabelledBatch | None, list[tuple[str, str]]]:
    """Prepare a batch.

    Parameters
    ----------
    model
        The model.
    batch
        Images with annotations.
    places
        Indices of the images in their dataset.
    target_spec
        The classes to explain, as the entry `targets` of a plan.

    Returns
    -------
    tuple
        The images that have valid targets (None if there are none), and key and reason for every other image.
    """
    targets = resolve_targets(model, target_spec, batch.labels, batch.rival_labels)
    targets, good, reasons = targets.keep_valid(batch.keys, model.outputs)
    failures = [(batch.keys[place], reason) for place, reason in reasons.items()]
    if not good:
        return None, failures
    index = torch.tensor(good)
    probe = probe_of(model, batch.images[index], None if targets.need_logits else targets.fixed)
    logits = probe.full_logits.cpu()
    if targets.need_logits:
        classes, front = targets.add_predicted(logits), None
    else:
        classes, front = probe.targets.view(len(good), -1).cpu(), probe
    return LabelledBatch(
        model,
        tuple(batch.keys[place] for place in good),
        tuple(places[place] for place in good),
        batch.images[index],
        classes,
        targets.roles,
        batch.labels[index],
        logits,
        collect_annotations(batch, good, targets.roles),
        front,
    ), failures


def collect_annotations(batch: Batch, indices: Sequence[int], roles: tuple[str, ...]) -> dict[str, Any]:
    """Annotations that metrics may read, one entry per row; for a `rival` target, object and rival are swapped."""
    rows = torch.tensor([index for index in indices for _ in roles])
    is_rival = torch.tensor([role == "rival" for _ in indices for role in roles])
    annotations: dict[str, Any] = {"labels": batch.labels[rows]}
    objects, rivals = batch.objects, batch.rivals
    if objects is not None:
        annotations["objects"] = (
            objects[rows] if rivals is None else rivals[rows].where(is_rival[:, None, None], objects[rows])
        )
    if rivals is not None and objects is not None:
        annotations["rivals"] = objects[rows].where(is_rival[:, None, None], rivals[rows])
    if batch.boxes is not None:
        drawn = [batch.boxes[row] for row in rows.tolist()]
        annotations["boxes"] = [
            None if swapped else boxes for boxes, swapped in zip(drawn, is_rival.tolist(), strict=True)
        ]
    return annotations


@dataclass(frozen=True, eq=False)
class TargetClasses:
    """Target classes of a batch, as far as they do not depend on the model.

    Parameters
    ----------
    fixed
        Classes that do not depend on the logits; None if all do.
    roles
        Roles of all k target columns.
    """

    fixed: Int[Tensor, "b n"] | None
    roles: tuple[str, ...]

    @property
    def need_logits(self) -> bool:
        """Whether `add_predicted` has to be called: for top classes, or the predicted class beside the label."""
        return self.roles == ("predicted", "label") or (self.fixed is None and self.roles != ("predicted",))

    def add_predicted(self, logits: Float[Tensor, "b c"]) -> Int[Tensor, "b k"]:
        """The predicted class beside the given label, or the top classes."""
        if self.fixed is None:
            return logits.topk(len(self.roles)).indices
        return torch.cat([logits.argmax(-1, keepdim=True), self.fixed], 1)

    def keep_valid(self, keys: Sequence[str], classes: int) -> tuple[TargetClasses, list[int], dict[int, str]]:
        """Leave out images without a valid target.

        Parameters
        ----------
        keys
            Keys of the images, for messages.
        classes
            Number of the model's classes.

        Returns
        -------
        tuple
            The targets of the other images, the indices of these, and a message by index for those left out.
        """
        if self.fixed is None:
            return self, list(range(len(keys))), {}
        named = self.roles[-self.fixed.shape[1] :]  # the predicted class, which comes first, is always valid
        reasons = (explain_invalid_target(row, named, classes) for row in self.fixed.tolist())
        messages = {row: f"{keys[row]!r} has {reason}" for row, reason in enumerate(reasons) if reason}
        valid = [row for row in range(len(keys)) if row not in messages]
        return replace(self, fixed=self.fixed[valid]), valid, messages


def resolve_targets(
    model: BlackBox, targets: Targets, labels: Int[Tensor, " b"], rival_labels: Int[Tensor, " b"] | None = None
) -> TargetClasses:
    """Target classes of a batch; `targets` is the entry of a plan."""
    match targets:
        case "predicted":
            return TargetClasses(None, ("predicted",))
        case "label":
            return TargetClasses(labels[:, None], ("label",))
        case "predicted+label":
            return TargetClasses(labels[:, None], ("predicted", "label"))
        case "pair":
            rivals = torch.full_like(labels, -1) if rival_labels is None else rival_labels
            return TargetClasses(torch.stack([labels, rivals], 1), ("label", "rival"))
        case str():
            count = min(int(targets.split()[1]), model.outputs)
            return TargetClasses(None, tuple(f"top {place + 1}" for place in range(count)))
    classes = class_indices(model, [list(targets)] * len(labels), len(labels))
    return TargetClasses(classes, ("class",) * len(targets))


def explain_invalid_target(targets: Sequence[int], roles: tuple[str, ...], classes: int) -> str:
    """Reason why the targets are invalid, or an empty string."""
    for target, role in zip(targets, roles, strict=True):
        if target < 0:
            return {"label": "no label", "rival": "no second class"}.get(role, "no target")
        if target >= classes:
            return f"the {role} {target}, and the model knows {classes} classes"
    return ""
