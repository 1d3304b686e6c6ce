"""Explain stage: one model replica that turns decoded images into rows with maps.

There is one row per image, target and method, in Arrow tables with the columns

    key          key of the image in its dataset; index: its index in its part of the source
    target       explained class; target_name: its name; role: "predicted", "label", "rival", "class" or "top 1", …
    label        true class, −1 if unknown; predicted: predicted class
    probability  softmax probability of the target (NaN if the model has a single output)
    method       canonical spec; question: name of the score function
    grid         the map in float16, row by row; the map is grid · scale
    scale, rows, columns
                 scale and shape of the grid
    native       "patch" or "pixel"; for "pixel" the grid holds sums over patches, or pixels if a black box has no patches
    signed       whether the scores have a sign; score: the number that is explained
    error        null, or one sentence why there is no map; grid is null then
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from dataclasses import fields as fields_of
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitreous.bench.labelled_batch import TargetClasses, resolve_targets
from vitreous.bench.model_options import LoadedModel, load_cached
from vitreous.bench.rows import COLUMNS, make_arrow_schema, to_half_precision
from vitreous.bench.worker import format_error, free_memory
from vitreous.capture.black_box_probe import BlackBoxProbe
from vitreous.capture.cuda_graphs import GraphCache
from vitreous.capture.precision import computing
from vitreous.capture.probe import probe_of
from vitreous.capture.score_function import ScoreFunction, resolve_score_function
from vitreous.capture.targets import ClassTarget
from vitreous.core.errors import ModelError, SpecError
from vitreous.explanation import can_be_recorded, cautions, compute_batch, precision_of, provenance
from vitreous.map_findings import MapFindings
from vitreous.mapping.decode import ImageBatch
from vitreous.mapping.job import FORMAT, MapJob, SliceRange
from vitreous.methods.attribution import Attribution
from vitreous.methods.method import Method
from vitreous.methods.spec import resolve
from vitreous.models.eval_mode import evaluating
from vitreous.models.image_input import Preprocess

if TYPE_CHECKING:
    import pyarrow as pa


STORED = (
    "key", "index", "target", "target_name", "role", "label", "predicted", "probability", "method", "question",
    "grid", "scale", "rows", "columns", "native", "signed", "score", "error",
)  # fmt: skip


def map_schema() -> pa.Schema:
    """Arrow schema of the rows."""
    return make_arrow_schema({name: COLUMNS["maps"][name] for name in STORED})


@dataclass(frozen=True, slots=True, eq=False)
class MapRows:
    """Maps of one method for n images of a batch, at some positions, with k targets each, on the CPU."""

    method: str
    question: str
    roles: tuple[str, ...]
    batch: ImageBatch
    positions: Sequence[int]
    maps: Float[Tensor, "r h w"]
    score: Float[Tensor, " r"] | None
    targets: Int[Tensor, "n k"]
    predicted: Int[Tensor, " n"]
    probability: Float[Tensor, "n k"]
    native: str
    signed: bool
    findings: MapFindings

    def table(self, names: Sequence[str]) -> pa.Table:
        """The rows as a table; `names` are the class names."""
        import pyarrow as pa

        count, positions = len(self.maps), np.repeat(self.positions, len(self.roles))
        grids, scales = to_half_precision(self.maps.numpy())
        targets = self.targets.numpy().ravel()
        offsets = np.arange(count + 1, dtype=np.int32) * grids.shape[1]
        columns: dict[str, Any] = {
            "key": [self.batch.keys[position] for position in positions],
            "index": np.array(self.batch.places)[positions],
            "target": targets,
            "target_name": [names[target] for target in targets],
            "role": list(self.roles) * len(self.positions),
            "label": np.array(self.batch.labels)[positions],
            "predicted": np.repeat(self.predicted.numpy(), len(self.roles)),
            "probability": self.probability.numpy().ravel(),
            "method": [self.method] * count,
            "question": [self.question] * count,
            "grid": pa.ListArray.from_arrays(offsets, pa.array(grids.ravel())),
            "scale": scales,
            "rows": np.full(count, self.maps.shape[1], np.int32),
            "columns": np.full(count, self.maps.shape[2], np.int32),
            "native": [self.native] * count,
            "signed": [self.signed] * count,
            "score": np.full(count, np.nan) if self.score is None else self.score.numpy(),
            "error": pa.nulls(count, pa.string()),
        }
        return pa.table(columns, schema=map_schema())


def make_failed_rows(failures: Sequence[tuple[int, str, str]], methods: Sequence[str]) -> pa.Table:
    """Rows of images without a map: one per method, with the error message."""
    import pyarrow as pa

    rows = [
        {"index": index, "key": key, "error": error, "method": method, "target": -1, "label": -1, "predicted": -1}
        for index, key, error in failures
        for method in methods
    ]
    return pa.Table.from_pylist(rows, schema=map_schema())


def join_rows(tables: Sequence[pa.Table]) -> pa.Table:
    """All rows in the order of the images; rows of one image are ordered by target, then by method."""
    import pyarrow as pa

    if len(tables) == 1:
        return tables[0]
    joined = pa.concat_tables([map_schema().empty_table(), *tables]).combine_chunks()
    # Tables of several methods have the same rows: number the rows of an image within each table.
    within = np.concatenate([rank_in_image(table["index"].to_numpy()) for table in tables]) if tables else np.empty(0)
    return joined.take(np.lexsort((within, joined["index"].to_numpy())))


def rank_in_image(index: np.ndarray) -> np.ndarray:
    """Number of each row among the rows of its image, which lie side by side."""
    starts = np.flatnonzero(np.diff(index, prepend=-1))
    return np.arange(len(index)) - np.repeat(starts, np.diff(np.append(starts, len(index))))


@dataclass(frozen=True, slots=True, eq=False)
class SliceRows:
    """Rows of a slice, and the number of its images that the dataset's protocol leaves out."""

    range: SliceRange
    table: pa.Table
    skipped: int


@dataclass(slots=True, eq=False)
class Launched:
    """Work that a device may still be computing: tensors on their way to the CPU."""

    batch: ImageBatch
    rows: list[MapRows] = field(default_factory=list)
    failures: list[tuple[int, str, str]] = field(default_factory=list)
    done: torch.cuda.Event | None = None


class MapExplainer:
    """One model replica; it loads the model once.

    `launch` starts the computation of a batch and `finish` waits for it and makes its rows, so that the device can work
    on the next batch meanwhile. Calling the replica does both.

    Parameters
    ----------
    job
        What to compute.
    device
        Device of the replica.
    """

    def __init__(self, job: MapJob, device: str) -> None:
        self.model: LoadedModel = load_cached(job.model, job.precision, device)
        self.job = replace(job, weights=self.model.weights)
        self.vit = self.model.vit
        if self.vit.preprocess is None:
            raise ModelError(f"model {job.model.name!r} does not say how images are prepared; give --mean and --std")
        self.preprocess: Preprocess = self.vit.preprocess
        self.methods: list[Method] = [resolve(spec).for_model(self.vit) for spec in job.methods]
        self.graphs, self.usual_size = GraphCache(1), 0
        self.copies = torch.cuda.Stream(self.vit.device) if self.vit.device.type == "cuda" else None
        self.names = [self.vit.class_name(index) for index in range(self.vit.outputs)]

    def __call__(self, batch: ImageBatch) -> SliceRows:
        return self.finish(self.launch(batch))

    def launch(self, batch: ImageBatch) -> Launched:
        """Start the computation of a batch."""
        launched = Launched(batch, failures=list(batch.failures))
        with torch.inference_mode(False), evaluating(self.vit.module):
            for positions, images in batch.groups:
                self.explain_images(launched, positions, self.to_device(images))
        if self.vit.device.type == "cuda":
            launched.done = torch.cuda.Event()
            launched.done.record()
        return launched

    def to_device(self, images: Tensor) -> Float[Tensor, "n 3 H W"]:
        """Model inputs on the device; colours are normalised there, by the same operations as on a CPU."""
        if self.copies is not None:  # on a stream of its own, while batches that were launched before are computed
            images = images if images.is_pinned() else images.pin_memory()
            with torch.cuda.stream(self.copies):
                images = images.to(self.vit.device, non_blocking=True)
            now = torch.cuda.current_stream(self.vit.device)
            now.wait_stream(self.copies)
            images.record_stream(now)
        return (self.preprocess.normalise(images) if images.dtype == torch.uint8 else images).contiguous()

    def explain_images(self, launched: Launched, positions: Sequence[int], images: Tensor) -> None:
        """Explain some images; if that fails, each half is tried separately, and one image becomes a failed row."""
        batch = launched.batch
        labels, rivals = (
            torch.tensor([column[position] for position in positions]) for column in (batch.labels, batch.rival_labels)
        )
        try:
            targets = resolve_targets(self.vit, self.job.targets, labels, rivals)
            keys = [batch.keys[position] for position in positions]
            targets, valid, reasons = targets.keep_valid(keys, self.vit.outputs)
            launched.failures += [(batch.places[positions[row]], keys[row], why) for row, why in reasons.items()]
            if not valid:
                return
            if reasons:
                images, positions = images[valid], [positions[row] for row in valid]
            launched.rows += self.explain_targets(batch, positions, images, targets)
        except Exception as problem:
            if isinstance(problem, SpecError | ModelError):
                raise
            if len(positions) == 1:
                key = batch.keys[positions[0]]
                launched.failures.append((batch.places[positions[0]], key, format_error(problem)))
                return
            free_memory(problem)
            half = len(positions) // 2
            self.explain_images(launched, positions[:half], images[:half])
            self.explain_images(launched, positions[half:], images[half:])

    def explain_targets(
        self,
        batch: ImageBatch,
        positions: Sequence[int],
        images: Float[Tensor, "n 3 H W"],
        classes: TargetClasses,
    ) -> list[MapRows]:
        """Rows of every method; tensors of the result may still be on their way from the device."""
        probes: dict[str | None, BlackBoxProbe] = {}  # by precision; methods of one precision share the forward pass
        rows: list[MapRows] = []
        if classes.fixed is not None:
            fixed = classes.fixed.to(self.vit.device, non_blocking=self.vit.device.type == "cuda")
            classes = replace(classes, fixed=fixed)
        targets, logits = None if classes.need_logits else classes.fixed, None
        for method in self.methods:
            precision, score = self.precision_of(method), self.score_function(method)
            if self.replays(method, images, classes):
                attribution = self.compute(images, ClassTarget(classes.fixed), method, graphs=self.graphs)
                assert attribution.logits is not None
                logits = attribution.logits[:: len(classes.roles)]
                targets = attribution.targets.view(len(images), -1)
            else:
                if precision not in probes:
                    with computing(precision, self.vit.device):
                        probe = probe_of(self.vit, images, targets)
                        if logits is None:
                            logits = probe.full_logits
                            if classes.need_logits:
                                targets = classes.add_predicted(logits)
                                probe = probe_of(self.vit, images, targets)
                            targets = probe.targets.view(len(images), -1)
                    probes[precision] = probe
                probe = probes[precision].with_score_function(score)
                attribution = self.compute(images, ClassTarget(targets), method, probe=probe)
            assert targets is not None
            assert logits is not None
            chances = logits.double().softmax(-1).gather(1, targets)
            rows.append(
                MapRows(
                    method=method.spec,
                    question=score.name,
                    roles=classes.roles,
                    batch=batch,
                    positions=positions,
                    maps=to_cpu(attribution.maps().float()),
                    score=None if attribution.score is None else to_cpu(attribution.score.double()),
                    targets=to_cpu(targets),
                    predicted=to_cpu(logits.argmax(-1)),
                    probability=to_cpu(torch.full_like(chances, math.nan) if self.vit.scalar else chances),
                    native=attribution.native,
                    signed=attribution.signed,
                    findings=MapFindings.of(attribution, self.vit, method, images).on_cpu(non_blocking=True),
                )
            )
        return rows

    def compute(self, images: Tensor, target: ClassTarget, method: Method, **how: Any) -> Attribution:
        """Maps of a batch, which the device may still be computing."""
        precision = None if self.job.precision == "float64" else self.job.precision
        return compute_batch(self.vit, images, target, method, self.score_function(method), precision=precision, **how)

    def replays(self, method: Method, images: Tensor, classes: TargetClasses) -> bool:
        """Whether a batch is computed as a CUDA graph: of one method, of the usual size, with targets known before."""
        self.usual_size = max(self.usual_size, len(images))
        return (
            len(self.methods) == 1
            and len(images) == self.usual_size
            and not classes.need_logits
            and can_be_recorded(method, self.vit)
        )

    def precision_of(self, method: Method) -> str | None:
        """Precision that a method is computed in; None for a model in float64."""
        return None if self.job.precision == "float64" else precision_of(method, self.vit, self.job.precision)

    def score_function(self, method: Method) -> ScoreFunction:
        return resolve_score_function(method.chosen_question(self.job.question, scalar=self.vit.scalar))

    def finish(self, launched: Launched) -> SliceRows:
        """Wait for the device and make the rows of the slice, in the order of the images."""
        if launched.done is not None:
            launched.done.synchronize()
        batch = launched.batch
        if batch.release is not None:
            batch.release()
        tables = [table for rows in launched.rows for table in self.tables(rows)]
        if launched.failures or not tables:
            tables.append(make_failed_rows(launched.failures, [method.spec for method in self.methods]))
        return SliceRows(batch.range, join_rows(tables), batch.skipped)

    def tables(self, rows: MapRows) -> list[pa.Table]:
        """The rows of images whose maps are sound, and failed rows of the others."""
        method = next(method for method in self.methods if method.spec == rows.method)
        row_errors = rows.findings.row_errors(self.vit, method, self.score_function(method))
        if not row_errors:
            return [rows.table(self.names)]
        per_image = len(rows.roles)
        errors = {row // per_image: format_error(error) for row, error in sorted(row_errors.items(), reverse=True)}
        sound = [row for row in range(len(rows.maps)) if row // per_image not in errors]
        failures = [
            (rows.batch.places[rows.positions[image]], rows.batch.keys[rows.positions[image]], error)
            for image, error in errors.items()
        ]
        return [rows.table(self.names).take(np.array(sound, dtype=np.int64)), make_failed_rows(failures, [rows.method])]

    def about(self) -> dict[str, Any]:
        """Metadata of the files: the job, the model and how the maps were computed."""
        layout = self.vit.layout(self.preprocess.size)
        is_plain = type(self.preprocess) is Preprocess
        example = torch.empty(0, 3, *self.preprocess.size)
        return {
            "format": FORMAT,
            "run": self.job.run,
            "model": self.job.model.name,
            "model_spec": asdict(self.job.model),
            "dataset": self.job.spec,
            "images": self.job.images,
            "weights": self.model.weights,
            "layout": {"grid": layout.grid, "patch": layout.patch, "prefix": layout.prefix},
            "preprocess": {item.name: getattr(self.preprocess, item.name) for item in fields_of(Preprocess)}
            if is_plain
            else None,
            "provenance": {
                method.spec: {
                    **provenance(self.vit, method, self.score_function(method), example, cautions(method, self.vit)),
                    "precision": self.precision_of(method) or self.job.precision,
                }
                for method in self.methods
            },
        }


def to_cpu(tensor: Tensor) -> Tensor:
    """Start the copy of a tensor to the CPU; a GPU's copies are complete when the event of the batch is."""
    return tensor.to("cpu", non_blocking=tensor.device.type == "cuda")
