"""Memory and time of `vitreous report`, `vitreous compare` and the summary of `vitreous bench` over the number of rows.

python benchmarks/store_rows.py --rows 1000000 10000000

The rows are invented and written as the parts of a store, without running models: 20 methods × 10 metrics (four with curves,
one that is pooled) for every image. Every figure is measured in a process of its own: peak resident memory less that after the
imports, and seconds of CPU time. Fewer resamples than usual are drawn: memory does not depend on their number, and their time
is the number of rows times that of resamples.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

METHODS = (
    "random", "rollout", "gradcam", "genatt", "tokentm", "decompx", "decompx+plus", "decompx+skipplus", "ixg", "ixg+plus",
    "ixg+skipplus", "fullgrad", "fullgrad+plus", "attcat", "attcam", "transatt", "lrp", "temper", "alti", "globenc",
)  # fmt: skip
CURVES = ("deletion_aopc", "insertion_aopc", "positive_auc", "negative_auc")
METRICS = (*CURVES, "pixel_accuracy", "pointing_game", "sparseness", "ap", "f1", "max_sensitivity")
LEVELS = [round(step / 10, 1) for step in range(1, 10)]
CELL, PART = 16, 256  # images in a cell, and in a part


def make_store(folder: Path, rows: int) -> None:
    """Write a store with about `rows` rows of invented scores."""
    from vitreous.bench.atomic_files import write_part
    from vitreous.bench.store import Store

    images = rows // (len(METHODS) * len(METRICS)) // CELL * CELL
    draw = np.random.default_rng(0)
    with Store(folder) as store:
        store.begin("run", "", {})
        for start in range(0, images, PART):
            count = min(PART, images - start)
            table = invent_rows(start, count, draw)
            name, size = write_part(store.parts_folder, "scores", table)
            keys = table["key"].to_pylist()
            with store.writing():
                store._list(name, size, [bytes.fromhex(key) for key in keys], [False] * len(keys))
                for cell in range(start // CELL, (start + count) // CELL):
                    listing = {"model": "m", "dataset": "d", "failed": False, "rows": list_cell(cell, start, keys)}
                    packed = zlib.compress(json.dumps(listing).encode(), 1)
                    store.connection.execute("INSERT INTO cells VALUES (?, ?, ?)", ("run", cell, packed))


def list_cell(cell: int, start: int, keys: list[str]) -> list[list[Any]]:
    """Name, index, role, label and keys of every image of a cell; `keys` are those of the images from `start` on."""
    own = len(METHODS) * len(METRICS)
    return [
        [f"image-{index}", index, "predicted", 1, keys[(index - start) * own : (index - start + 1) * own]]
        for index in range(cell * CELL, (cell + 1) * CELL)
    ]


def invent_rows(start: int, images: int, draw: np.random.Generator) -> Any:
    """Rows of some images, in the order of a plan: image by image, then method by method."""
    import pyarrow as pa

    from vitreous.bench.rows import make_schema

    per_image = len(METHODS) * len(METRICS)
    count = images * per_image
    metrics = list(METRICS) * (images * len(METHODS))
    index = np.repeat(np.arange(start, start + images), per_image)
    scores = draw.random(count)
    has_curve = np.isin(metrics, CURVES)
    offsets = np.append(0, np.cumsum(np.where(has_curve, len(LEVELS), 0)))
    curves, levels = (
        pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, mask=pa.array(~has_curve))
        for values in (draw.random(offsets[-1]), np.tile(LEVELS, has_curve.sum()))
    )
    columns = {
        "key": [f"{number:032x}" for number in range(start * per_image, (start + images) * per_image)],
        "image": [f"image-{at}" for at in index],
        "index": index,
        "target": index % 1000,
        "method": [method for method in METHODS for _ in METRICS] * images,
        "metric": metrics,
        "value": scores,
        "higher_is_better": [metric != "deletion_aopc" for metric in metrics],
        "parts": [
            [("correct", value), ("labelled", 1.0)] if name == "pixel_accuracy" else []
            for name, value in zip(metrics, scores, strict=True)
        ],
        "curve": curves,
        "levels": levels,
        "seconds": draw.random(count),
        "map_seconds": draw.random(count),
        "peak_mib": draw.random(count),
    }
    constants = {
        "model": "m", "dataset": "d", "target_name": "cat", "role": "predicted", "label": 1, "predicted": 1, "probability": 0.5,
        "question": "logit", "error": None, "weights": "w" * 32, "pixels": "p" * 32, "evidence": "", "precision": "float32",
        "device": "cpu", "vitreous": "0", "torch": "2", "protocol": "{}", "about": json.dumps({"settings": "x" * 200}),
    }  # fmt: skip
    fields = make_schema("scores")
    arrays = {name: pa.array(values, fields.field(name).type) for name, values in columns.items()}
    arrays |= {name: pa.repeat(pa.scalar(value, fields.field(name).type), count) for name, value in constants.items()}
    return pa.table({name: arrays[name] for name in fields.names}, schema=fields)


def report(folder: Path, draws: int) -> None:
    from vitreous.bench.summary import summarise_metric
    from vitreous.report import page

    page.summarise_metric = partial(summarise_metric, draws=draws)
    page.write_report(folder, folder / "report" / "report.html", gallery=0)


def compare(folder: Path, draws: int) -> None:
    from vitreous.report import compare

    compare.compute_difference_interval = partial(compare.compute_difference_interval, draws=draws)
    compare.compare_runs(folder, folder)


def summary(folder: Path, draws: int) -> None:
    from vitreous.bench.store import Store
    from vitreous.bench.summary import summarise_store

    with Store(folder, create=False) as store:
        summarise_store(store, draws=draws)


COMMANDS: dict[str, Callable[[Path, int], None]] = {"summary": summary, "report": report, "compare": compare}


def measure(command: str, folder: Path, draws: int) -> None:
    """Run one command in this process; print its peak memory in MiB and its CPU seconds."""
    import pandas
    import pyarrow

    from vitreous.bench import summary
    from vitreous.report import compare, page

    del pandas, pyarrow, summary, page, compare
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    COMMANDS[command](folder, draws)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{command}: {(peak - before) / 1024:.0f} MiB more than {before / 1024:.0f}, {time.process_time() - start:.0f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--folder", type=Path, help="keeps the stores; a temporary folder if not given")
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--measure", nargs=2, metavar=("COMMAND", "STORE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure[0], Path(options.measure[1]), options.draws)
        return
    with tempfile.TemporaryDirectory() as temporary:
        for rows in options.rows:
            folder = (options.folder or Path(temporary)) / str(rows)
            if not folder.exists():
                make_store(folder, rows)
            print(f"{rows} rows", flush=True)
            for command in options.commands:
                own = [sys.executable, __file__, "--measure", command, str(folder), "--draws", str(options.draws)]
                subprocess.run(own, check=True)


if __name__ == "__main__":
    main()
