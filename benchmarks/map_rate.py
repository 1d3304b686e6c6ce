"""How fast `vitreous map` explains a dataset, against the rate of the same method on images that are already in memory.

    python benchmarks/map_rate.py --long 100000 --json map_rate.json       # everything, in at most --limit seconds
    python benchmarks/map_rate.py --side 256 --precision tf32 --method temper      # one row
    python benchmarks/map_rate.py --device cpu --model timm:vit_tiny_patch16_224 --images 256 --distinct 64   # a try

JPEGs are made here (textures with the file sizes of photographs), packed into tar files, and read back from disk by the
pipeline: listing, decoding in processes, one model replica, Parquet shards. Weights are random. Rates are taken after the
first fifth of the images, when all processes run. `ratio` is images/s end to end over images/s in memory. `--long` adds a
run over so many images with the first method and precision: its rate, and the memory as it goes.

Where the time goes, in milliseconds per batch: `launch` is what starting a batch takes in the pipeline and `launch_alone`
outside of it; `wait` is what the launching thread waits for decoded images or for the GPU. `waits` are the lines that
wait for the GPU while a batch is launched (there should be none).
"""

from __future__ import annotations

import argparse
import io
import json
import os
import tarfile
import tempfile
import time
import warnings
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitreous.bench.labelled_batch import TargetClasses
from vitreous.bench.plan import ModelSpec
from vitreous.mapping.decode import ImageBatch, decode, decode_slice
from vitreous.mapping.explain import MapExplainer
from vitreous.mapping.job import MapJob, Share, SliceRange, iterate_slices
from vitreous.mapping.run import MapProgress, iterate_pending_slices, run_map
from vitreous.mapping.shard_files import FolderState
from vitreous.mapping.source import open_source

PER_TAR = 1024
WARM = 0.2  # share of the images before the rate is taken


def make_jpegs(side: int, count: int, seed: int = 0) -> list[bytes]:
    """JPEGs of `side` × 3/4 `side` pixels (square below 300): smooth colours and texture, quality 90."""
    random = np.random.default_rng(seed)
    width, height = side, side if side < 300 else side * 3 // 4
    files = []
    for _ in range(count):
        coarse = Image.fromarray(random.integers(0, 256, (8, 8, 3), np.uint8)).resize(
            (width, height), Image.Resampling.BICUBIC
        )
        texture = Image.fromarray(random.integers(0, 256, (height // 3, width // 3), np.uint8)).resize((width, height))
        pixels = 0.8 * np.asarray(coarse, np.float32) + 0.2 * np.asarray(texture, np.float32)[..., None]
        stream = io.BytesIO()
        Image.fromarray(pixels.astype(np.uint8)).save(stream, "JPEG", quality=90)
        files.append(stream.getvalue())
    return files


def write_tars(folder: Path, jpegs: list[bytes], images: int) -> str:
    """Write tar files of `PER_TAR` images each (the same bytes come again under other keys); return their spec."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = range(-(-images // PER_TAR))
    for number in numbers:
        path = folder / f"images-{number:05d}.tar"
        if path.exists():  # of an earlier row
            continue
        with tarfile.open(path, "w") as archive:
            for index in range(number * PER_TAR, min((number + 1) * PER_TAR, images)):
                data = jpegs[index % len(jpegs)]
                member = tarfile.TarInfo(f"{index:08d}.jpg")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return f"wds:{folder}/images-{{00000..{numbers[-1]:05d}}}.tar"


def read_memory() -> float:
    """Resident memory of this process."""
    return next(
        float(line.split()[1]) / 1024
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmRSS")
    )


class RateMeter:
    """Notes time, images and memory at the reports of a run."""

    def __init__(self, images: int) -> None:
        self.points: list[tuple[float, int, float]] = []
        self.step = max(1, images // 200)

    def __call__(self, progress: MapProgress) -> None:
        if not self.points or progress.done_images >= self.points[-1][1] + self.step:
            self.points.append((time.perf_counter(), progress.done_images, read_memory()))

    def rate(self, images: int) -> float:
        steady = [point for point in self.points if point[1] >= WARM * images]
        return (steady[-1][1] - steady[0][1]) / (steady[-1][0] - steady[0][0])

    def memory_at(self, images: int) -> float:
        return next((memory for _, done, memory in self.points if done >= images), self.points[-1][2])


def measure_rate_in_memory(explainer: MapExplainer, batch: int, seconds: float) -> float:
    """Images/s of the pipeline's explain stage on one batch that is on the device already; results stay there."""
    decoded = make_blank_batch(batch, explainer.preprocess.size)
    images = torch.randn(batch, 3, *explainer.preprocess.size, device=explainer.vit.device)
    done, start = 0, 0.0
    with torch.inference_mode(False):
        for number in range(10_000):
            if number == 6:  # the first batches choose kernels, and record a CUDA graph
                synchronise(explainer.vit.device)
                done, start = 0, time.perf_counter()
            explainer.explain_targets(decoded, range(batch), images, TargetClasses(None, ("predicted",)))
            done += batch
            if number > 8 and time.perf_counter() - start > seconds:
                break
            if number % 16 == 15:  # as in the pipeline, few batches are launched ahead
                synchronise(explainer.vit.device)
    synchronise(explainer.vit.device)
    return done / (time.perf_counter() - start)


def make_blank_batch(batch: int, size: tuple[int, int]) -> ImageBatch:
    """A decoded batch of black images."""
    return ImageBatch(
        SliceRange("", 0, 0, batch, False, False),
        keys=[str(number) for number in range(batch)],
        places=list(range(batch)),
        labels=[-1] * batch,
        rival_labels=[-1] * batch,
        groups=[(list(range(batch)), torch.zeros(batch, 3, *size, dtype=torch.uint8))],
    )


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def measure_launch(explainer: MapExplainer, batch: int) -> tuple[float, list[str]]:
    """Milliseconds to launch a batch while nothing else runs, and the lines that wait for the GPU in that time."""
    decoded = make_blank_batch(batch, explainer.preprocess.size)
    for _ in range(6):
        explainer(decoded)
    seconds = []
    for _ in range(5):
        synchronise(explainer.vit.device)
        start = time.perf_counter()
        launched = explainer.launch(decoded)
        seconds.append(time.perf_counter() - start)
        explainer.finish(launched)
    lines: list[str] = []
    if explainer.vit.device.type == "cuda":
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                launched = explainer.launch(decoded)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            explainer.finish(launched)
        lines = sorted({f"{Path(w.filename).name}:{w.lineno}" for w in caught if "synchron" in str(w.message)})
    return 1e3 * float(np.median(seconds)), lines


def measure_decode_rates(
    spec: str, explainer: MapExplainer, processes: int, batch: int, images: int
) -> dict[str, float]:
    """Images/s of the decode stage alone: in one thread, and in all decoding processes."""
    source, preprocess, shard_size = open_source(spec), explainer.preprocess, explainer.job.shard_size
    works = [work for work, _ in zip(iterate_slices(source, 0, {}, 32, shard_size), range(8), strict=False)]
    decode_slice(source, preprocess, works[0])
    start = time.perf_counter()
    for work in works[1:]:
        decode_slice(source, preprocess, work)
    one_core = sum(len(work.items) for work in works[1:]) / (time.perf_counter() - start)
    list_slices = partial(iterate_pending_slices, source, FolderState(), batch, shard_size, Share())
    points, done = [], 0
    with closing(decode(source, preprocess, list_slices, processes, batch)) as batches:
        for decoded in batches:
            if decoded.release is not None:
                decoded.release()
            done += len(decoded.keys)
            points.append((time.perf_counter(), done))
            if done >= images:
                break
    steady = [point for point in points if point[1] >= WARM * done]
    rate = (steady[-1][1] - steady[0][1]) / max(steady[-1][0] - steady[0][0], 1e-9)
    return {"decode_one_core": one_core, "decode_all": rate}


def measure(folder: Path, job: MapJob, device: str, batch: int, processes: int, images: int) -> dict[str, Any]:
    """Run the whole pipeline: rate, seconds in all, time of the launching thread, and memory."""
    meter, start = RateMeter(images), time.perf_counter()
    spent: list[tuple[float, float]] = []  # begin and end of every launch
    launch = MapExplainer.launch

    def timed(self: MapExplainer, batch: ImageBatch) -> Any:
        start = time.perf_counter()
        launched = launch(self, batch)
        spent.append((start, time.perf_counter()))
        return launched

    MapExplainer.launch = timed
    try:
        with tempfile.TemporaryDirectory(dir=folder) as out:
            run_map(job, Path(out), device=device, batch_size=batch, decoding=processes, report=meter)
    finally:
        MapExplainer.launch = launch
    steady = spent[int(WARM * len(spent)) :]
    launching = sum(end - start for start, end in steady) / len(steady)
    whole = (steady[-1][1] - steady[0][0]) / len(steady)
    return {
        "end_to_end": meter.rate(images),
        "seconds": time.perf_counter() - start,
        "launch": 1e3 * launching,
        "wait": 1e3 * (whole - launching),
        "mib": {
            str(at): meter.memory_at(at) for at in sorted({images // 10, images // 2, images, min(images, 10_000)})
        },
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", default="timm:vit_base_patch16_224")
    parser.add_argument("--method", action="append")
    parser.add_argument("--precision", action="append")
    parser.add_argument("--side", action="append", type=int)
    parser.add_argument("--images", type=int, default=16_384)
    parser.add_argument("--distinct", type=int, default=512)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--decoders", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--seconds", type=float, default=2.0, help="for each rate in memory")
    parser.add_argument("--long", type=int, default=0, help="one more run over so many images, with memory as it goes")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds after which no row is begun")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--folder", type=Path, help="where JPEGs and maps are written; a temporary folder by default")
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    start = time.perf_counter()
    methods = options.method or ["decompx+skipplus", "temper"]
    precisions = options.precision or (["tf32", "bf16"] if options.device.startswith("cuda") else ["float32"])
    sides = options.side or [256, 500]
    model = ModelSpec(options.model, "model", pretrained=False)
    name = torch.cuda.get_device_name() if options.device.startswith("cuda") else "CPU"
    about = {"device": name, "cores": os.cpu_count(), "torch": torch.__version__, "model": options.model}
    results: dict[str, Any] = {**about, "batch": options.batch, "decoders": options.decoders, "rows": []}
    print("; ".join(f"{key} {value}" for key, value in results.items() if key != "rows"), flush=True)
    plan = [
        (side, precision, method, options.images) for side in sides for precision in precisions for method in methods
    ]
    if options.long:  # after the first row, so that it is not the one that is left out
        plan.insert(1, (sides[0], precisions[0], methods[0], options.long))
    measured: dict[Any, Any] = {}  # JPEGs and decoding rates by side, rates in memory by precision and method
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        folder = Path(place)
        for side, precision, method, images in plan:
            if time.perf_counter() - start > options.limit:
                results["rows"].append({"side": side, "precision": precision, "method": method, "error": "time is up"})
                continue
            jpegs = measured.get(side) or measured.setdefault(side, make_jpegs(side, min(options.distinct, images)))
            spec = write_tars(folder / f"{side}-{images}", jpegs, images)
            job = MapJob(model, spec, (method,), precision=precision)
            explainer = MapExplainer(job, options.device)
            if ("decoding", side) not in measured:
                count = min(images, 8192)
                measured["decoding", side] = measure_decode_rates(
                    spec, explainer, options.decoders, options.batch, count
                )
            if (precision, method) not in measured:
                rate = measure_rate_in_memory(explainer, options.batch, options.seconds)
                measured[precision, method] = rate, *measure_launch(explainer, options.batch)
            in_memory, alone, lines = measured[precision, method]
            row = {
                "side": side, "kib": float(np.mean([len(jpeg) for jpeg in jpegs])) / 1024, "precision": precision,
                "method": method, "images": images, **measured["decoding", side],
                "in_memory": in_memory, "launch_alone": alone, "waits": lines,
                **measure(folder, job, options.device, options.batch, options.decoders, images),
            }  # fmt: skip
            row["ratio"] = row["end_to_end"] / in_memory
            results["rows"].append(row)
            bound = " (decoding binds)" if row["decode_all"] < in_memory else ""
            print(
                f"{side} px {precision:8} {method:18} in memory {in_memory:7.0f}/s, end to end {row['end_to_end']:7.0f}/s, ratio "
                f"{row['ratio']:.2f}{bound}; {images} images in {row['seconds']:.0f} s; launch {row['launch']:.1f} ms (alone {alone:.1f}), "
                f"wait {row['wait']:.1f} ms; decoding {row['decode_one_core']:.0f}/s in one thread, {row['decode_all']:.0f}/s in all "
                f"processes; MiB {row['mib']}; waits {lines}",
                flush=True,
            )
            if options.json:
                options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
