"""Speed and ranks in float32, TF32 and bfloat16 on a GPU.

    python benchmarks/precision.py --out out                                     # everything, in at most --seconds
    python benchmarks/precision.py speed --size b --method temper --precision bf16 --out out      # some rows
    python benchmarks/precision.py ranks --assets FOLDER --images 128 --out out
    python benchmarks/precision.py ranks --known benchmarks/results/h200-precision.json --out out   # methods that are not measured yet

`kernels` compares the Triton kernels with the torch operations that they replace. `speed` is milliseconds per image and the ratio to
one forward and backward of timm's own module in the same precision and the same run (in bfloat16: a module whose weights were
converted); `graph_ratio` is that of the method replayed as a CUDA graph, to the same baseline. `ranks` compares maps with float64 on trained weights, if the assets have them: Spearman's correlation over patches, median
and minimum over images; "bf16" forces bfloat16 products on every method, also if its `facts.precision` does not allow them, "bf16 weights" converts the model.
`profile` lists the operators of some rows. Results are written to precision.json as they come, and to precision.md.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from suite.workload import Workload, make_workload, run_backward  # noqa: E402

import vitreous  # noqa: E402 - the suite and the package are next to this file
from vitreous import explanation  # noqa: E402
from vitreous.capture import fused  # noqa: E402
from vitreous.capture.cuda_graphs import CACHES, CALLS_BEFORE_RECORDING, cache_of, record  # noqa: E402
from vitreous.capture.fused import FusedAttention  # noqa: E402
from vitreous.capture.linearise import Linearisation  # noqa: E402
from vitreous.capture.precision import computing  # noqa: E402
from vitreous.core.errors import Caveat, VitreousError  # noqa: E402
from vitreous.methods.method import Method  # noqa: E402
from vitreous.metrics.ranks import spearman  # noqa: E402

SPEED = ("decompx+skipplus", "temper+skipplus", "decompx+plus", "temper", "ixg", "gradcam", "fuse", "genatt", "tokentm")
PRECISIONS = ("float32", "tf32", "bf16")
FEWER = {"masks": 128, "samples": 128, "steps": 10, "coalitions": 8}  # random draws and steps of a path
VARIANTS = ("temper+skipplus", "decompx+plus", "decompx+skipplus", "ixg+plus", "ixg@libra+plus", "ixg@libra+skipplus", "ixg+skipplus",
            "genatt+skipplus", "gradcam+plus", "gradcam+skipplus", "fullgrad@libra+plus", "tokentm+skipplus")  # fmt: skip


def compute_all_in_bfloat16() -> None:
    """Compute every method in the requested precision, also if its `facts.precision` does not allow it."""
    explanation.lowest_precision = lambda method: "bf16"


# ── kernels ──────────────────────────────────────────────────────────────────────────────────────


def draw_random(device: str) -> Callable[..., Tensor]:
    """A function that draws tensors of given shapes."""
    generator = torch.Generator(device).manual_seed(0)

    def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device).to(dtype)

    return random


def measure_kernel_differences(
    device: str, tokens: int = 197, widths: Sequence[int] = (192, 768, 1000, 1024)
) -> Iterator[dict[str, Any]]:
    """Largest difference between each kernel and torch's operations in float64, relative to the largest value."""
    random = draw_random(device)
    for dtype in (torch.float32, torch.bfloat16):
        for width in widths:
            kernels = fused.load_kernels(torch.device(device))
            if kernels is None:
                yield {"kernel": "none", "error": "Triton cannot be used here"}
                return
            x, y, upstream, skip = (random(4, tokens, width, dtype=dtype) for _ in range(4))
            weight, bias = random(width), random(width)
            row = {"dtype": str(dtype).removeprefix("torch."), "width": width}
            yield row | compare_values("row_dot", kernels.row_dot(x, y), (x.double() * y.double()).sum(-1))
            yield row | compare_values("row_dot, one vector", kernels.row_dot(x, weight), x.double() @ weight.double())
            parts = (x.double(), y.double() - skip.double())
            for name, ours, theirs in zip(
                ("xx", "xy", "yy"),
                kernels.token_products(x, y, skip),
                [(a * b).sum(-1) for a, b in combinations_with_replacement(parts, 2)],
                strict=True,
            ):
                yield row | compare_values(f"token_products, {name}", ours, theirs)
            active = F.gelu(x)
            active[0, 0, :4] = x[0, 0, :4] = 0
            ratio = (active.double() / x.double()).nan_to_num(nan=0.5)
            yield row | compare_values(
                "ratio", kernels.ratio_backward(x, active, upstream, 0.5), ratio * upstream.double()
            )
            total, normed, mean, rstd = kernels.norm_forward(x, y, weight, bias, 1e-6, dtype)
            exact = x.double() + y.double()
            yield row | compare_values("sum", total, exact)
            norm = nn.LayerNorm(width, eps=1e-6, device=device, dtype=torch.float64).requires_grad_(False)
            norm.weight.copy_(weight)
            norm.bias.copy_(bias)
            yield row | compare_values("norm", normed, norm(exact))
            for mode in ("exact", "frozen", "fixed"):
                leaf = total.double().requires_grad_()
                expected = torch.autograd.grad(Linearisation(norm=mode).normalise(norm, leaf), leaf, upstream.double())[
                    0
                ]
                tensors = (upstream, skip, total, weight, mean, rstd, mode, dtype, torch.bfloat16)
                first, second = kernels.norm_backward(*tensors)
                yield row | compare_values(f"norm backward, {mode}", first, expected + skip.double())
                yield row | compare_values(f"norm backward, {mode}, copy", second, expected + skip.double())
        attention = random(2, 3, tokens, tokens, dtype=dtype).abs()
        gradient, factor = random(2, 3, tokens, tokens, dtype=dtype), random(2, 3, tokens).abs()
        expected = (attention.double() * gradient.double().clamp(min=0) * factor.double()[:, :, None]).mean(1)
        row = {"dtype": str(dtype).removeprefix("torch."), "width": tokens}
        yield row | compare_values("positive_mean", kernels.positive_mean(attention, gradient, factor), expected)


def measure_attention_differences(
    device: str, tokens: int = 197, widths: Sequence[int] = (8, 64, 80, 160), **tile: Any
) -> Iterator[dict[str, Any]]:
    """The same for kernels that read attention from queries, keys and values of 2 images, and gradients of 2 targets each."""
    if fused.load_kernels(torch.device(device)) is None:
        return
    from vitreous.capture import triton_attention, triton_kernels

    random = draw_random(device)
    for width in widths:
        row = {"dtype": "bfloat16", "width": width}
        q, k, v = random(2, tokens, 3, 3, width, dtype=torch.bfloat16).permute(
            2, 0, 3, 1, 4
        )  # views of one tensor, as a qkv layer returns them
        upstream = random(4, tokens, 3, width, dtype=torch.bfloat16).transpose(1, 2)
        factor = random(4, 3, tokens).abs()
        exact = FusedAttention(*(x.double() for x in (q, k, v)), width**-0.5, v)
        tensors = (q, k, v, width**-0.5, upstream)
        for name, weight in (("positive_mean of q, k, v", None), ("positive_mean of q, k, v, weighted", factor)):
            expected = exact.positive_mean(upstream.double(), None if weight is None else weight.double())
            yield row | compare_values(name, triton_attention.positive_mean(*tensors, weight, **tile), expected)
        expected = exact.presence_grad(upstream.double())
        yield row | compare_values(
            "presence_grad of q, k, v", triton_attention.presence_grad(*tensors, **tile), expected
        )
        if width > 128:  # wider values use torch's products
            continue
        shift, projected, gram = random(3, width), random(4, tokens, 3, width), random(3, width, width)
        shared, squared = triton_kernels.value_products(v, shift, projected, gram @ gram.mT)
        moved = v.double().repeat_interleave(2, 0) - shift.double()[:, None]
        yield row | compare_values(
            "value_products, shared", shared, (projected.double().transpose(1, 2) * moved).sum(-1)
        )
        expected = ((moved @ (gram @ gram.mT).double()) * moved).sum(-1)
        yield row | compare_values("value_products, squared", squared, expected, allowed=3e-3)  # in TF32


def compare_values(name: str, values: Tensor, expected: Tensor, allowed: float | None = None) -> dict[str, Any]:
    gap = float((values.double() - expected).abs().max() / expected.abs().max())
    allowed = allowed or (2e-5 if values.dtype == torch.float32 else 8e-3)
    return {"kernel": name, "difference": gap, "agrees": gap < allowed}


# ── speed ────────────────────────────────────────────────────────────────────────────────────────


def synchronise() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measure_seconds(work: Callable[[], Any]) -> float:
    synchronise()
    start = time.perf_counter()
    work()
    synchronise()
    return time.perf_counter() - start


def measure_speeds(options: argparse.Namespace, deadline: float) -> Iterator[dict[str, Any]]:
    for size in options.size or ("b", "l"):
        workload = make_workload(size, options.device, options.batch)
        half = copy.deepcopy(workload.model).to(torch.bfloat16)
        # the fastest first, in case there is too little time for all
        for precision in [name for name in reversed(PRECISIONS) if name in (options.precision or PRECISIONS)]:
            model, images = (
                (half, workload.images.bfloat16()) if precision == "bf16" else (workload.model, workload.images)
            )
            # in bfloat16 the products outside of the blocks are in TF32, which a scope of float32 would forbid
            with computing("tf32" if precision == "bf16" else precision, torch.device(options.device)):
                floor = lambda model=model, images=images: run_backward(model, images)  # noqa: E731
                for spec in options.method or SPEED:
                    if time.monotonic() > deadline:
                        yield {
                            "size": size,
                            "precision": precision,
                            "method": spec,
                            "error": "left out: the time is up",
                        }
                        continue
                    yield {"size": size, "precision": precision, "method": spec} | time_method(
                        workload, spec, precision, floor, options
                    )
        if time.monotonic() < deadline:
            yield measure_autocast_floor(workload, options)


def time_method(
    workload: Workload, spec: str, precision: str, floor: Callable[[], Any], options: argparse.Namespace
) -> dict[str, Any]:
    """Milliseconds per image of a method and of the baseline, measured alternately; also as CUDA graphs, and in bfloat16 without the kernels."""
    method = vitreous.resolve(spec)

    def ours(cuda_graph: bool = False) -> Tensor:
        return vitreous.explain(
            workload.vit,
            workload.images,
            method=method,
            batch_size=len(workload.images),
            precision=precision,
            cuda_graph=cuda_graph,
        ).patches

    def replayed() -> Tensor:
        return ours(cuda_graph=True)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Caveat)
            ours(), floor(), ours(), floor()  # compile and warm up
            graph_floor = record_floor(floor)
            for _ in range(CALLS_BEFORE_RECORDING + 2):
                replayed(), graph_floor()
            rounds = [
                {
                    "ours": measure_seconds(ours),
                    "floor": measure_seconds(floor),
                    "graph": measure_seconds(replayed),
                    "graph floor": measure_seconds(graph_floor),
                }
                for _ in range(options.rounds)
            ]
            ratios = [times["ours"] / times["floor"] for times in rounds]
            row = {
                "ms": compute_ms_per_image(rounds, "ours", workload),
                "floor_ms": compute_ms_per_image(rounds, "floor", workload),
                "ratio": statistics.median(ratios),
                "spread": [min(ratios), max(ratios)],
                "graph_ms": compute_ms_per_image(rounds, "graph", workload),
                "graph_ratio": statistics.median(times["graph"] / times["floor"] for times in rounds),
                "graph_floor_ms": compute_ms_per_image(rounds, "graph floor", workload),
                "is_replayed": any(recording is not None for recording in cache_of(workload.vit).recordings.values()),
            }
            CACHES.pop(workload.vit, None)
            if precision == "bf16":
                with without_kernels():
                    ours()
                    plain = [measure_seconds(ours) for _ in range(options.rounds)]
                row["eager_ratio"] = statistics.median(plain) / (1e-3 * row["floor_ms"] * len(workload.images))
    except (RuntimeError, VitreousError) as problem:
        return {"error": f"{type(problem).__name__}: {str(problem).splitlines()[0][:200]}"}
    return row


def compute_ms_per_image(rounds: list[dict[str, float]], side: str, workload: Workload) -> float:
    """Median milliseconds per image of one side."""
    return 1e3 * statistics.median(times[side] for times in rounds) / len(workload.images)


def record_floor(floor: Callable[[], Any]) -> Callable[[], Any]:
    """The baseline as a CUDA graph; unchanged without a GPU."""
    if not torch.cuda.is_available():
        return floor
    recording = record(lambda _: floor(), [torch.zeros(1, device="cuda")])
    return floor if recording is None else lambda: recording.graph.replay()  # noqa: PLW0108 - keeps the recording alive


class without_kernels:  # noqa: N801 - a context
    """Torch's operations instead of the kernels."""

    def __enter__(self) -> None:
        self.before, fused.load_kernels = fused.load_kernels, lambda device: None

    def __exit__(self, *_: object) -> None:
        fused.load_kernels = self.before


def measure_autocast_floor(workload: Workload, options: argparse.Namespace) -> dict[str, Any]:
    """One forward and backward of the float32 module under torch's autocast, to compare with the converted module."""

    def work() -> Tensor:
        with torch.autocast(torch.device(options.device).type, torch.bfloat16):
            return run_backward(workload.model, workload.images)

    work()
    durations = [measure_seconds(work) for _ in range(options.rounds)]
    return {
        "size": workload.size,
        "precision": "autocast",
        "method": "floor",
        "floor_ms": 1e3 * statistics.median(durations) / len(workload.images),
    }


# ── ranks ────────────────────────────────────────────────────────────────────────────────────────


def load_trained(options: argparse.Namespace) -> tuple[Callable[[], vitreous.ViT], Tensor, str]:
    """Loader of a trained model, images for it, and a description with a placeholder for their number.

    The model is ViT-Ti/16 of the assets, else the embedded model.
    """
    place = f"an {torch.cuda.get_device_name(options.device)}" if options.device.startswith("cuda") else "a CPU"
    place = place.replace("NVIDIA ", "")
    assets = Path(options.assets or os.environ.get("VITREOUS_ASSETS") or HERE.parent / ".carry" / "assets")
    files = sorted(assets.glob("weights/vit_tiny_patch16_224*.safetensors"))
    photographs = [file for file in sorted(assets.rglob("*")) if file.suffix.lower() in (".jpg", ".jpeg", ".png")]
    photographs = [file for file in photographs if "trimap" not in str(file)]

    def load() -> vitreous.ViT:
        if files:
            return vitreous.load("timm:vit_tiny_patch16_224", checkpoint=files[0], device=options.device)
        return vitreous.load("scenes", device=options.device)

    vit = load()
    assert vit.preprocess is not None
    if photographs and files:
        step = max(1, len(photographs) // options.images)
        chosen = photographs[::step][: options.images]
        return (
            load,
            vit.preprocess.batch(list(map(open_photograph, chosen))),
            f"ViT-Ti/16 as trained, {{}} photographs, on {place}",
        )
    scenes = [vitreous.scenes.draw(("single", "pair")[i % 2], seed=7, index=i) for i in range(options.images)]
    if files:
        images = vit.preprocess.batch([scene.image for scene in scenes])
        return load, images, f"ViT-Ti/16 as trained, {{}} scenes (no photographs), on {place}"
    return load, torch.stack(list(map(vitreous.scenes.tensor, scenes))), f"the embedded model, {{}} scenes, on {place}"


def open_photograph(file: Path) -> Any:
    from vitreous.models.image_input import open_image

    return open_image(file)


def measure_ranks(options: argparse.Namespace, deadline: float) -> Iterator[dict[str, Any]]:
    """Rank correlations of all methods that are not measured yet; slow methods come last, with as many images as time allows."""
    load, images, about = load_trained(options)
    exact, single, half = load(), load(), load()
    exact.module.double()
    half.module.bfloat16()
    targets = vitreous.explain(exact, images, method="rawattention").targets.cpu()
    modes = {
        "float32": (single, "float32"),
        "tf32": (single, "tf32"),
        "bf16": (single, "bf16"),
        "bf16 weights": (half, None),
    }
    measured = {row["method"] for row in read_ranks(options.known)}
    names = [method["name"] for method in vitreous.list_methods()]
    specs = options.method or [spec for spec in [*VARIANTS, *names] if spec not in measured]
    specs.sort(key=lambda spec: bool(vitreous.resolve(spec).facts.trial))

    def explain(vit: vitreous.ViT, method: Method, count: int, precision: str | None = None) -> Tensor:
        scores = vitreous.explain(vit, images[:count], targets[:count], method, precision=precision).patches
        assert scores is not None
        return scores

    for place, spec in enumerate(specs):
        start = time.monotonic()
        row: dict[str, Any] = {"method": spec, "on": about.format(len(images))}
        if start > deadline:
            yield row | {"error": "left out: the time is up"}
            continue
        method = vitreous.resolve(spec)
        fewer = {
            key: value for key, value in FEWER.items() if key in method.known_options and key not in method.options
        }
        method = method.with_options(**fewer)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                first = measure_seconds(lambda method=method: explain(exact, method, 4))
                share = 1.3 * (deadline - start) / (len(specs) - place)  # most methods need less than their share
                count = next((n for n in (128, 64, 32, 16) if first / 4 * n * 2 < share), 8)
                count = min(count, len(images))
                row["on"] = about.format(count)
                reference = explain(exact, method, count)
                for name, (vit, precision) in modes.items():
                    rank_correlations = correlate_ranks(explain(vit, method, count, precision), reference)
                    row[name] = {
                        "median": float(rank_correlations.nanmedian()),
                        "min": float(rank_correlations.min()),
                        "nan": int(rank_correlations.isnan().sum()),
                    }
            except (RuntimeError, TypeError, ValueError, VitreousError) as problem:
                row["error"] = f"{type(problem).__name__}: {str(problem).splitlines()[0][:200]}"
        yield row | {"spec": method.spec, "seconds": round(time.monotonic() - start, 2)}
        torch.cuda.empty_cache()


def read_ranks(files: Sequence[Path]) -> list[dict[str, Any]]:
    """Rows of earlier results."""
    return [row for file in files for row in json.loads(file.read_text())["ranks"]]


def correlate_ranks(scores: Tensor, reference: Tensor) -> Tensor:
    """Spearman's correlation of every row."""
    return spearman(scores.double(), reference.double()).cpu()


# ── profiles ─────────────────────────────────────────────────────────────────────────────────────


def profile_methods(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    from torch.profiler import ProfilerActivity, profile

    workload = make_workload((options.size or ["b"])[0], options.device, options.batch)
    half = copy.deepcopy(workload.model).to(torch.bfloat16)
    images = workload.images.bfloat16()
    works: dict[str, Callable[[], Any]] = {"floor": lambda: run_backward(half, images)}
    for spec in options.method or ("temper", "genatt", "tokentm"):
        method = vitreous.resolve(spec)
        works[spec] = lambda method=method: vitreous.explain(
            workload.vit, workload.images, method=method, batch_size=len(workload.images), precision="bf16"
        )
    for name, work in works.items():
        work(), work()
        synchronise()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recording:
            work()
            synchronise()
        yield (
            name,
            recording.key_averages().table(sort_by="self_cuda_time_total", row_limit=30, max_name_column_width=70),
        )


# ── results ──────────────────────────────────────────────────────────────────────────────────────


def format_markdown(results: dict[str, Any]) -> str:
    lines = [results["machine"], ""]
    failed = [row for row in results.get("kernels", []) if not row.get("agrees")]
    if "kernels" in results:
        lines += [f"Kernels: {len(results['kernels'])} comparisons, {len(failed)} wrong", *map(json.dumps, failed), ""]
    if results.get("speed"):
        lines += [
            "| size | method | precision | ms / image | baseline | ratio | spread | ratio as a graph | ratio without kernels |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for row in results["speed"]:
            if "ratio" in row:
                eager = f"{row['eager_ratio']:.2f}" if "eager_ratio" in row else ""
                spread = "–".join(f"{end:.2f}" for end in row["spread"])
                graph = f"{row['graph_ratio']:.2f}" if "graph_ratio" in row else "–"
                cells = (f"{row['ms']:.3f}", f"{row['floor_ms']:.3f}", f"{row['ratio']:.2f}", spread, graph, eager)
            else:
                cells = (row.get("error", ""), f"{row['floor_ms']:.3f}" if "floor_ms" in row else "", "", "", "", "")
            lines.append("| " + " | ".join((row["size"], f"`{row['method']}`", row["precision"], *cells)) + " |")
        lines.append("")
    if results.get("ranks"):
        lines += [
            results["ranks"][0]["on"],
            "",
            "| method | float32 | tf32 | bf16 | bf16 weights | seconds |",
            "|---|---|---|---|---|---|",
        ]
        for row in results["ranks"]:
            cells = [
                f"{row[mode]['median']:.5f} / {row[mode]['min']:.4f}" if mode in row else row.get("error", "")
                for mode in ("float32", "tf32", "bf16", "bf16 weights")
            ]
            lines.append("| " + " | ".join((f"`{row['method']}`", *cells, str(row.get("seconds", "")))) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("parts", nargs="*", choices=["kernels", "speed", "ranks", "profile"], help="all by default")
    arguments.add_argument(
        "--out", type=Path, required=True, help="folder of precision.json, precision.md and profiles"
    )
    arguments.add_argument("--device", default="cuda")
    arguments.add_argument("--size", action="append", choices=("ti", "b", "l", "test"))
    arguments.add_argument("--precision", action="append", choices=PRECISIONS, help="of `speed`, instead of all")
    arguments.add_argument("--method", action="append", help="instead of all")
    arguments.add_argument("--batch", type=int, default=64)
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--images", type=int, default=128)
    arguments.add_argument(
        "--assets", help="folder with weights/ and photographs; VITREOUS_ASSETS or .carry/assets by default"
    )
    arguments.add_argument("--seconds", type=float, default=330, help="nothing begins after so long")
    arguments.add_argument(
        "--known", type=Path, action="append", default=[], help="results whose ranks are kept and not measured again"
    )
    options = arguments.parse_args()
    parts = options.parts or ["kernels", "profile", "speed", "ranks"]
    start = time.monotonic()
    compute_all_in_bfloat16()
    options.out.mkdir(parents=True, exist_ok=True)
    name = torch.cuda.get_device_name(options.device) if options.device.startswith("cuda") else options.device
    results: dict[str, Any] = {
        "machine": f"{name}, torch {torch.__version__}, vitreous {vitreous.__version__}, batch {options.batch}"
    }

    def keep(part: str, row: dict[str, Any]) -> None:
        results.setdefault(part, []).append(row)
        (options.out / "precision.json").write_text(json.dumps(results, indent=1) + "\n")
        (options.out / "precision.md").write_text(format_markdown(results))
        print(json.dumps(row), flush=True)

    if "kernels" in parts:
        for row in [*measure_kernel_differences(options.device), *measure_attention_differences(options.device)]:
            keep("kernels", row)
    if "profile" in parts:
        for title, table in profile_methods(options):
            (options.out / f"profile-{title}.txt").write_text(table)
    if "speed" in parts:
        share = 0.6 if "ranks" in parts else 1.0
        for row in measure_speeds(options, start + share * options.seconds):
            keep("speed", row)
    if "ranks" in parts:
        results["ranks"] = read_ranks(options.known)
        for row in measure_ranks(options, start + options.seconds):
            keep("ranks", row)
    print(f"{time.monotonic() - start:.0f} s; {options.out / 'precision.md'}")


if __name__ == "__main__":
    main()
