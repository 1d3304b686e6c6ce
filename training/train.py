"""Train a Scenes model from random weights.

    python training/train.py --model scenes
    python training/train.py --model scenes-biased
    python training/train.py --model scenes-swin
    python training/train.py --model scenes --smoke    # seconds on a CPU, as a test
    python training/train.py --model scenes --minutes 3    # fewer steps: the schedule ends with the time

Settings are in training/config.toml. The weights go to src/vitreous/scenes/weights, with a log beside them in training/logs.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import random
import time
import tomllib
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokens import compute_logits, draw_patches, hide_patches
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from training_images import Chunks, Pool, augment

from vitreous.scenes import CLASSES, MODELS, PATCH, SIZE, build_model, load_model

HERE = Path(__file__).parent
UNDECAYED = ("pos_embed", "cls_token", "relative_position_bias_table")
WEIGHTS = HERE.parent / "src" / "vitreous" / "scenes" / "weights"


def read_settings(name: str, smoke: bool) -> dict[str, Any]:
    """Common settings, updated by those of a model and, for a smoke run, by smaller ones."""
    table = tomllib.loads((HERE / "config.toml").read_text())
    return table["common"] | table[name] | (table["smoke"] if smoke else {})


def train(
    name: str,
    config: dict[str, Any],
    device: torch.device,
    workers: int,
    out: Path,
    logs: Path,
    minutes: float = math.inf,
    start: Path | None = None,
) -> Path:
    """Train, write checkpoints, and return the path of the weights; `start` is a folder with initial weights.

    The learning rate depends on the share of the steps or of the minutes that have passed, whichever is larger, so that a slow
    machine does fewer steps of the same schedule.
    """
    torch.manual_seed(config["seed"])
    python_random = random.Random(config["seed"])
    noise = torch.Generator(device).manual_seed(config["seed"])
    model = build_model(name) if start is None else load_model(name, start)
    model = model.to(device).train()
    average = copy.deepcopy(model).eval()
    optimizer = torch.optim.AdamW(
        _group_parameters(model, config["weight_decay"]), betas=(0.9, 0.99), fused=device.type == "cuda"
    )
    new_images = config["batch"] // config["reuse"]
    chunks = DataLoader(
        Chunks(config["sorts"], new_images, config["steps"] + config["reuse"] - 1, config["seed"]),
        batch_size=None,
        num_workers=workers,
        prefetch_factor=8 if workers else None,
        pin_memory=device.type == "cuda",
    )
    pool = Pool(config["pool"], device, config["seed"])
    started, log = time.monotonic(), []
    stream = iter(chunks)
    for _ in range(config["reuse"] - 1):  # so that the first batch has more than one chunk
        pool.add(*next(stream))
    for step, (images, targets) in enumerate(stream, start=1):
        images, targets = pool.batch(pool.add(images, targets), config["batch"])
        progress = max(step / config["steps"], (time.monotonic() - started) / (60 * minutes))
        rate = _compute_rate(config, step, progress)
        loss = _compute_loss(model, augment(images, config["flip"], noise), targets, config, python_random, noise)
        _update(model, optimizer, loss, config["learning_rate"] * rate, config["clip"])
        _update_average(average, model, min(config["average"], step / (step + 9)))
        if step % max(1, config["steps"] // 100) == 0:
            log.append({"step": step, "loss": round(loss.item(), 4), "seconds": round(time.monotonic() - started, 1)})
            print(json.dumps(log[-1]), flush=True)
        if step % config["save_every"] == 0 or progress >= 1:
            if progress >= 1:
                config = config | {"steps": step}
            path = save_weights(average, name, config | {"step": step}, out)
            _write_log(logs / f"{name}.json", name, config, log)
        if progress >= 1:
            break
    return path


def _group_parameters(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Parameter groups with weight decay (matrices) and without (biases, norms, positions, class token)."""
    groups: dict[float, list[nn.Parameter]] = {decay: [], 0.0: []}
    for key, parameter in model.named_parameters():
        is_matrix = parameter.ndim > 1 and not key.endswith(UNDECAYED)
        groups[decay if is_matrix else 0.0].append(parameter)
    return [{"params": parameters, "weight_decay": rate} for rate, parameters in groups.items()]


def _compute_rate(config: dict[str, Any], step: int, progress: float) -> float:
    """Factor on the learning rate: a linear warm-up, then a cosine to 0.005 at progress 1."""
    if step < config["warm_up"]:
        return step / config["warm_up"]
    start = config["warm_up"] / config["steps"]
    done = (min(progress, 1) - start) / max(1 - start, 1 / config["steps"])
    return 0.005 + 0.995 * 0.5 * (1 + math.cos(math.pi * done))


def _compute_loss(
    model: nn.Module,
    images: Tensor,
    targets: Tensor,
    config: dict[str, Any],
    python_random: random.Random,
    noise: torch.Generator,
) -> Tensor:
    patches = None
    if python_random.random() < config["dropping"]:
        share = python_random.uniform(config["fewest"], 0.95)
        patches = draw_patches(len(images), SIZE // PATCH, share, noise, scattered=python_random.random() < 0.6)
    with torch.autocast(images.device.type, dtype=torch.bfloat16):
        if config["tokens_leave"] or patches is None:
            outputs = compute_logits(model, images, patches) if patches is not None else model(images)
        else:
            outputs = model(hide_patches(images, SIZE // PATCH, patches))
    return cross_entropy(outputs.float(), targets, label_smoothing=config["smoothing"])


def _update(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor, rate: float, clip: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()


@torch.no_grad()
def _update_average(average: nn.Module, model: nn.Module, decay: float) -> None:
    torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - decay)


def save_weights(model: nn.Module, name: str, config: dict[str, Any], out: Path) -> Path:
    """Save half-precision weights under timm's names, with the configuration in the metadata."""
    out.mkdir(parents=True, exist_ok=True)
    weights = {key: value.detach().to("cpu", torch.float16).contiguous() for key, value in model.state_dict().items()}
    about = {"model": name, "classes": json.dumps(CLASSES), "config": json.dumps(config), "seed": str(config["seed"])}
    path = out / f"{name}.safetensors"
    save_file(weights, path, metadata=about)
    path.chmod(0o644)
    return path


def _write_log(path: Path, name: str, config: dict[str, Any], log: list[dict[str, float]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps({"model": name, "config": config, "torch": torch.__version__, "log": log}, indent=1) + "\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--smoke", action="store_true", help="a few tiny steps")
    parser.add_argument("--steps", type=int, help="instead of the configured number")
    parser.add_argument("--minutes", type=float, default=math.inf, help="time limit; fewer steps if necessary")
    parser.add_argument("--start", type=Path, help="folder with initial weights, instead of random ones")
    parser.add_argument("--seed", type=int, help="of images and augmentations, instead of the configured one")
    parser.add_argument("--batch", type=int, help="images per step, instead of the configured number")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--workers", type=int, default=None, help="processes that draw images; default: all but a few cores"
    )
    parser.add_argument(
        "--out", type=Path, default=None, help="folder for weights and log, instead of the package's own"
    )
    chosen = parser.parse_args()
    config = read_settings(chosen.model, chosen.smoke)
    config |= {key: value for key in ("steps", "batch", "seed") if (value := getattr(chosen, key))}
    workers = chosen.workers if chosen.workers is not None else 0 if chosen.smoke else max(1, (os.cpu_count() or 1) - 3)
    print(
        train(
            chosen.model,
            config,
            torch.device(chosen.device),
            workers,
            chosen.out or WEIGHTS,
            chosen.out or HERE / "logs",
            chosen.minutes,
            chosen.start,
        )
    )


if __name__ == "__main__":
    main()
