"""Changes of the order of patches by another device or precision, for every method on the same images.

    python benchmarks/devices.py                                     # the embedded model on scenes
    python benchmarks/devices.py --weights vit_tiny.safetensors --pictures pets/ --json devices.json

The reference is float32 on the CPU. Against it: float32 on the device, the same with TF32 for convolutions and products
(torch's default has it for convolutions), and, for methods without a backward pass, bfloat16. All explain the class that the
reference predicts, with the same seeds. 1 − ρ is one minus Spearman's correlation of patch scores, `shift` the largest change
of the rank of a patch, as a share of all ranks; both are the worst of all images.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import vitreous
from vitreous.core.errors import Caveat, VitreousError
from vitreous.methods.method import Method
from vitreous.metrics.ranks import midranks, spearman
from vitreous.models.vit import ViT

SAMPLED = ("masks", "samples")  # options that are numbers of random subsets


@dataclass(frozen=True)
class Run:
    """Device and precision of a run."""

    name: str
    device: str
    dtype: torch.dtype = torch.float32
    tf32: bool = False

    def supports(self, method: Method) -> bool:
        return self.dtype == torch.float32 or method.facts.backwards == 0

    @contextmanager
    def arithmetic(self) -> Iterator[None]:
        before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = self.tf32
        try:
            yield
        finally:
            torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def list_runs(device: str) -> list[Run]:
    tf32_runs = [Run(f"{device} TF32", device, tf32=True)] if device.startswith("cuda") else []
    return [Run(f"{device} float32", device), *tf32_runs, Run(f"{device} bfloat16", device, torch.bfloat16)]


def load_model(arguments: argparse.Namespace, run: Run) -> ViT:
    if arguments.weights is None:
        vit = vitreous.load("scenes", device=run.device)
    else:
        vit = vitreous.load(arguments.model, checkpoint=arguments.weights, device=run.device)
    vit.module.to(run.dtype)
    return vit


def load_images(arguments: argparse.Namespace, vit: ViT) -> Tensor:
    """Preprocessed images, computed once, so that every run gets the same numbers."""
    if arguments.pictures is None:
        from vitreous.scenes import draw, tensor

        kinds = ("single", "pair", "part", "shortcut")
        return torch.stack([tensor(draw(kinds[i % 4], seed=7, index=i)) for i in range(arguments.count)])
    from vitreous.models.image_input import open_image

    files = sorted(p for p in Path(arguments.pictures).iterdir() if p.suffix.lower() in (".jpg", ".jpeg", ".png"))
    if not files:
        raise SystemExit(f"no image in {arguments.pictures!r}")
    assert vit.preprocess is not None
    return vit.preprocess.batch([open_image(file) for file in files[: arguments.count]])


def list_methods(arguments: argparse.Namespace) -> list[Method]:
    """The requested methods, or all, with `--samples` random subsets."""
    resolved = [
        vitreous.resolve(spec) for spec in arguments.method or [entry["name"] for entry in vitreous.list_methods()]
    ]
    return [
        method.with_options(**{key: arguments.samples for key in SAMPLED if key in list_free_options(method)})
        for method in resolved
    ]


def list_free_options(method: Method) -> set[str]:
    return method.known_options.keys() - method.options.keys()


# ── ranks ────────────────────────────────────────────────────────────────────────────────────────


def find_worst(scores: Tensor, reference: Tensor) -> dict[str, float]:
    """Largest change over all images of the order, of the rank of a patch and of a score."""
    a, b = scores.double().cpu(), reference.double().cpu()
    shift = (midranks(a) - midranks(b)).abs().max() / max(a.shape[1] - 1, 1)
    size = b.abs().amax()
    gap = float((a - b).abs().amax() / size) if size else math.nan
    return {"1 - rho": float((1 - spearman(a, b)).clamp(min=0).max()), "shift": float(shift), "difference": gap}


# ── the table ────────────────────────────────────────────────────────────────────────────────────


def explain_images(vit: ViT, images: Tensor, targets: Tensor | None, method: Method, run: Run) -> dict[str, Any]:
    """Patch scores and seconds, or the error message."""
    start = time.perf_counter()
    try:
        with run.arithmetic(), warnings.catch_warnings():
            warnings.simplefilter("ignore", Caveat)
            attribution = vitreous.explain(vit, images, targets, method)
            scores = attribution.patches.cpu()
    except (RuntimeError, TypeError, VitreousError) as problem:
        return {"error": f"{type(problem).__name__}: {str(problem).splitlines()[0]}"}
    return {"scores": scores, "targets": attribution.targets.cpu(), "seconds": time.perf_counter() - start}


def compare(arguments: argparse.Namespace, chosen: Sequence[Method]) -> dict[str, Any]:
    reference = Run("cpu float32", "cpu")
    vit = load_model(arguments, reference)
    images = load_images(arguments, vit)
    targets = explain_images(vit, images, None, vitreous.resolve("random"), reference)["targets"]
    references = {method.spec: explain_images(vit, images, targets, method, reference) for method in chosen}
    rows: dict[str, dict[str, Any]] = {spec: {"cpu float32": summarise(result)} for spec, result in references.items()}
    for run in list_runs(arguments.device):
        vit = load_model(arguments, run)
        for method in (method for method in chosen if run.supports(method)):
            result = explain_images(vit, images, targets, method, run)
            rows[method.spec][run.name] = summarise(result, references[method.spec])
    facts = {"model": vit.name, "pictures": len(images), "torch": torch.__version__, "device": arguments.device}
    if arguments.device.startswith("cuda"):
        facts["device"] = torch.cuda.get_device_name(arguments.device)
    return {
        **facts,
        "methods": rows,
        "largest": {run.name: find_largest(rows, run.name) for run in list_runs(arguments.device)},
    }


def summarise(result: dict[str, Any], reference: dict[str, Any] | None = None) -> dict[str, Any]:
    """A cell as plain numbers."""
    if "error" in result:
        return {"error": result["error"]}
    if not result["scores"].isfinite().all():
        return {"error": "some scores are not finite"}
    cell = {"seconds": round(result["seconds"], 3)}
    return (
        cell if reference is None or "error" in reference else cell | find_worst(result["scores"], reference["scores"])
    )


def find_largest(rows: dict[str, dict[str, Any]], run: str) -> dict[str, Any]:
    rows_with_ranks = {spec: cells[run] for spec, cells in rows.items() if "1 - rho" in cells.get(run, {})}
    if not rows_with_ranks:
        return {}
    by = {
        key: max(rows_with_ranks, key=lambda spec, key=key: rows_with_ranks[spec][key]) for key in ("1 - rho", "shift")
    }
    return {key: {"method": spec, "value": rows_with_ranks[spec][key]} for key, spec in by.items()}


def format_markdown(table: dict[str, Any]) -> str:
    names = list(table["largest"])
    lines = [
        f"{table['model']}, {table['pictures']} images, against float32 on the CPU; {table['device']}, torch {table['torch']}",
        "",
        "| method | cpu s | " + " | ".join(f"{name} s | 1 − ρ | shift" for name in names) + " |",
        "|---|---|" + "---|---|---|" * len(names),
    ]
    for spec, cells in table["methods"].items():
        line = [f"`{spec}`", format_cell(cells["cpu float32"])[0]]
        for name in names:
            line += format_cell(cells[name]) if name in cells else ["–", "–", "–"]
        lines.append("| " + " | ".join(line) + " |")
    lines.append("")
    for name, most in table["largest"].items():
        entries = (f"{key} {most[key]['value']:.2g} ({most[key]['method']})" for key in most)
        lines.append(f"Largest, {name}: " + ", ".join(entries))
    return "\n".join(lines)


def format_cell(cell: dict[str, Any]) -> list[str]:
    if "error" in cell:
        return [cell["error"], "", ""]
    if "1 - rho" not in cell:
        return [f"{cell['seconds']:.2f}", "", ""]
    return [f"{cell['seconds']:.2f}", f"{cell['1 - rho']:.1e}", f"{cell['shift']:.3f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="timm:vit_tiny_patch16_224", help="architecture of --weights")
    parser.add_argument("--weights", help="a checkpoint; without, the embedded model")
    parser.add_argument("--pictures", help="a folder; without, scenes")
    parser.add_argument("--count", type=int, default=4)
    parser.add_argument("--samples", type=int, default=128, help="number of random subsets of sampling methods")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--method", action="append")
    parser.add_argument("--json", type=Path, help="also write the table as JSON")
    arguments = parser.parse_args()
    if arguments.weights is not None and arguments.pictures is None:
        parser.error("--weights of another model need --pictures of its classes")
    table = compare(arguments, list_methods(arguments))
    print(format_markdown(table))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n")
    failed = [spec for spec, cells in table["methods"].items() if any("error" in cell for cell in cells.values())]
    raise SystemExit(f"{len(failed)} did not run: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
