"""How fast `vitreous map` explains a dataset, against the rate of the same method on images that are already in memory.

    python benchmarks/map_rate.py                          # JPEGs of 256 and 500 px; two methods, tf32 and bf16: minutes
    python benchmarks/map_rate.py --long 100000            # one run over many images: rate and memory as it goes
    python benchmarks/map_rate.py --device cpu --model timm:vit_tiny_patch16_224 --images 256 --distinct 64   # a try

JPEGs are made here (textures with the file sizes of photographs), packed into tar files, and read back from disk by the
pipeline: listing, decoding in processes, one model replica, Parquet shards. Weights are random. Rates are taken after the
first fifth of the images, when all processes run. `ratio` is pictures/s end to end over pictures/s in memory.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitreous.bench.plan import ModelSpec
from vitreous.bench.pool import count_cores
from vitreous.capture.targets import ClassTarget
from vitreous.explanation import choose_score_function, explain_batch
from vitreous.mapping.decode import decode_slice
from vitreous.mapping.explain import MapExplainer
from vitreous.mapping.job import MapJob, Share, slices_of
from vitreous.mapping.local import decoders
from vitreous.mapping.run import MapProgress, pending_slices, run_map
from vitreous.mapping.shard_files import FolderState
from vitreous.mapping.source import open_source

PER_TAR = 1000
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


def write_tars(folder: Path, jpegs: list[bytes], images: int) -> None:
    """Tar files of `PER_TAR` images each; the same bytes come again under other keys."""
    folder.mkdir(parents=True)
    for first in range(0, images, PER_TAR):
        with tarfile.open(folder / f"images-{first // PER_TAR:05d}.tar", "w") as archive:
            for number in range(first, min(first + PER_TAR, images)):
                data = jpegs[number % len(jpegs)]
                member = tarfile.TarInfo(f"{number:08d}.jpg")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def memory_mib() -> float:
    """Resident memory of this process."""
    return next(
        float(line.split()[1]) / 1024
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmRSS")
    )


class RateMeter:
    """Notes time, images and memory at every report of a run."""

    def __init__(self, images: int) -> None:
        self.points: list[tuple[float, int, float]] = []
        self.step = max(1, images // 500)

    def __call__(self, progress: MapProgress) -> None:
        if not self.points or progress.done_pictures >= self.points[-1][1] + self.step:
            self.points.append((time.perf_counter(), progress.done_pictures, memory_mib()))

    def rate(self, images: int) -> float:
        steady = [point for point in self.points if point[1] >= WARM * images]
        return (steady[-1][1] - steady[0][1]) / (steady[-1][0] - steady[0][0])

    def memory_at(self, images: int) -> float:
        return next((memory for _, done, memory in self.points if done >= images), self.points[-1][2])


def rate_in_memory(job: MapJob, device: str, batch: int, seconds: float) -> float:
    """Images/s of the method on one batch that is on the device already."""
    explainer = MapExplainer(job, device)
    vit, method, target = explainer.vit, explainer.methods[0], ClassTarget(None)
    images = torch.randn(batch, 3, *explainer.preprocess.size, device=device)
    score = choose_score_function(vit, target, method)
    done, begun = 0, 0.0
    with torch.inference_mode(False):
        for number in range(10_000):
            if number == 3:  # the first batches choose kernels
                synchronise(device)
                done, begun = 0, time.perf_counter()
            explain_batch(vit, images, target, method, score, precision=job.precision)
            done += batch
            if number > 5 and time.perf_counter() - begun > seconds:
                break
    synchronise(device)
    return done / (time.perf_counter() - begun)


def synchronise(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def decode_rates(spec: str, job: MapJob, processes: int, batch: int, images: int) -> dict[str, float]:
    """Images/s of the decode stage alone: in one thread, and in all decoding processes."""
    source = open_source(spec)
    preprocess = MapExplainer(job, "cpu").preprocess
    works = [work for work, _ in zip(slices_of(source, 0, {}, 32, job.shard_size), range(8), strict=False)]
    decode_slice(source, preprocess, works[0])
    begun = time.perf_counter()
    for work in works[1:]:
        decode_slice(source, preprocess, work)
    one = sum(len(work.items) for work in works[1:]) / (time.perf_counter() - begun)
    points = []
    with decoders(source, preprocess, processes) as decode:
        done = 0
        for decoded in decode(pending_slices(source, FolderState(), batch, job.shard_size, Share())):
            done += len(decoded.keys)
            points.append((time.perf_counter(), done))
            if done >= images:
                break
    steady = [point for point in points if point[1] >= WARM * done]
    return {"one_core": one, "all": (steady[-1][1] - steady[0][1]) / max(steady[-1][0] - steady[0][0], 1e-9)}


def measure(folder: Path, job: MapJob, device: str, batch: int, processes: int, images: int) -> tuple[RateMeter, float]:
    """Run the whole pipeline; return its meter and the seconds from the first line to the last file."""
    meter, begun = RateMeter(images), time.perf_counter()
    with tempfile.TemporaryDirectory(dir=folder) as out:
        run_map(job, Path(out), device=device, batch_size=batch, decoding=processes, report=meter)
    return meter, time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", default="timm:vit_base_patch16_224")
    parser.add_argument("--method", action="append")
    parser.add_argument("--precision", action="append")
    parser.add_argument("--side", action="append", type=int)
    parser.add_argument("--images", type=int, default=24_000)
    parser.add_argument("--distinct", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--decoders", type=int, default=max(1, count_cores() - 1))
    parser.add_argument("--seconds", type=float, default=3.0, help="for each rate in memory")
    parser.add_argument("--long", type=int, default=0, help="one run over so many images, with memory as it goes")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    methods = arguments.method or ["decompx+skipplus", "temper"]
    precisions = arguments.precision or (["tf32", "bf16"] if arguments.device.startswith("cuda") else ["float32"])
    images = arguments.long or arguments.images
    model = ModelSpec(arguments.model, "model", pretrained=False)
    name = torch.cuda.get_device_name() if arguments.device.startswith("cuda") else "CPU"
    print(
        f"{name}, {os.cpu_count()} cores, torch {torch.__version__}; {arguments.model}, batch {arguments.batch}, {arguments.decoders} decoding processes"
    )
    results: dict[str, Any] = {
        "device": name,
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "model": arguments.model,
        "rows": [],
    }
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for side in arguments.side or ([256] if arguments.long else [256, 500]):
            jpegs = make_jpegs(side, min(arguments.distinct, images))
            write_tars(folder / str(side), jpegs, images)
            spec = f"wds:{folder / str(side)}"
            size = float(np.mean([len(jpeg) for jpeg in jpegs])) / 1024
            plain = MapJob(model, spec, (methods[0],))
            decoding = decode_rates(spec, plain, arguments.decoders, arguments.batch, min(images, 8000))
            print(
                f"\nJPEG {side} px, {size:.0f} KiB: decoding {decoding['one_core']:.0f} images/s in one thread, {decoding['all']:.0f} in all processes"
            )
            for precision in precisions[:1] if arguments.long else precisions:
                for method in methods[:1] if arguments.long else methods:
                    job = MapJob(model, spec, (method,), precision=precision)
                    memory = rate_in_memory(job, arguments.device, arguments.batch, arguments.seconds)
                    meter, seconds = measure(folder, job, arguments.device, arguments.batch, arguments.decoders, images)
                    rate = meter.rate(images)
                    row = {
                        "side": side, "kib": size, "precision": precision, "method": method, "images": images,
                        "decode_one_core": decoding["one_core"], "decode_all": decoding["all"],
                        "in_memory": memory, "end_to_end": rate, "ratio": rate / memory, "seconds": seconds,
                        "mib": [meter.memory_at(int(images * share)) for share in (0.1, 0.5, 1.0)],
                    }  # fmt: skip
                    results["rows"].append(row)
                    bound = " (decoding binds)" if decoding["all"] < memory else ""
                    print(
                        f"{precision:8} {method:18} in memory {memory:7.0f}/s, end to end {rate:7.0f}/s, ratio {rate / memory:.2f}{bound}; "
                        f"{images} images in {seconds:.0f} s; {' / '.join(f'{mib:.0f}' for mib in row['mib'])} MiB at 10 / 50 / 100 %",
                        flush=True,
                    )
                    if arguments.json:
                        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
