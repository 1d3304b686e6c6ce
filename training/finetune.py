"""Fine-tune a timm model on CIFAR-10, CIFAR-100 or MURA, for the tables that need such models.

    python training/finetune.py --recipe cifar10 --data /data/cifar --init deit_base_patch16_224.pth --out weights/
    python training/finetune.py --recipe mura --data /data/MURA-v1.1 --out weights/    # fetches timm's weights

Settings are in training/finetune.toml. The weights go to OUT/<model>-<recipe>.safetensors, with a log beside them, and load with
`--checkpoint` (MURA's one output also needs `--model-arg outputs=binary`, which `vitreous reproduce` gives itself). The last epoch's weights are kept: choosing the best one by
test accuracy would fit it to the test set.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import save_file
from timm.data import create_transform, resolve_model_data_config
from tokens import compute_logits, draw_patches
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torch.utils.data import DataLoader, Dataset

from vitreous.core.errors import ModelError, SpecError, VitreousError
from vitreous.data import open_dataset
from vitreous.models.checkpoint import read_checkpoint
from vitreous.models.image_input import Preprocess
from vitreous.models.timm import convert_weights, timm_keys

HERE = Path(__file__).parent
LEFT_OUT = ("head.", "head_dist.", "decoder_", "mask_token")  # of another task
NEW = ("head.", "head_dist.", "fc_norm.")  # weights that a fine-tuned model may begin with at random


class Labelled(Dataset):
    """Images of a dataset as model inputs, with their labels.

    Parameters
    ----------
    spec
        Dataset spec.
    transform
        Converts an image to a model input.
    most
        Number of images; None for all.
    """

    def __init__(self, spec: str, transform: Any, most: int | None) -> None:
        self.samples, self.transform = open_dataset(spec), transform
        self.count = len(self.samples) if most is None else min(most, len(self.samples))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        sample = self.samples[index]
        if sample.label is None:
            raise ModelError(f"{sample.key!r} has no label to learn from")
        return self.transform(sample.image), sample.label


def read_recipe(name: str) -> dict[str, Any]:
    """Settings of a recipe over the common ones."""
    table = tomllib.loads((HERE / "finetune.toml").read_text())
    if name not in table or name == "common":
        raise SpecError(f"no recipe {name!r}; known: {', '.join(key for key in table if key != 'common')}")
    return table["common"] | table[name]


def build_model(config: dict[str, Any], classes: int, init: Path | None, pretrained: bool) -> nn.Module:
    """Create the model with a new classifier, and the other weights from `init` or from timm."""
    outputs = 1 if config["binary"] else classes
    arguments = {"num_classes": outputs, "drop_path_rate": config["drop_path"], **config.get("arguments", {})}
    try:
        model = timm.create_model(config["model"], pretrained=pretrained and init is None, **arguments)
    except (OSError, RuntimeError) as problem:
        raise ModelError(
            f"timm cannot build {config['model']!r} ({str(problem).splitlines()[0]}); --init takes a local file of weights, "
            "--random begins without"
        ) from None
    if init is None:
        return model
    state = timm_keys(read_checkpoint(init), config["model"])
    state = convert_weights(model, {key: value for key, value in state.items() if not key.startswith(LEFT_OUT)})
    try:
        left = model.load_state_dict(state, strict=False)
    except RuntimeError as problem:
        raise ModelError(
            f"'{init}' does not fit {config['model']!r}: {str(problem).splitlines()[-1].strip()}"
        ) from None
    wrong = [key for key in left.missing_keys if not key.startswith(NEW)] + left.unexpected_keys
    if wrong:
        raise ModelError(f"'{init}' does not fit {config['model']!r}: {len(wrong)} weights, the first {wrong[0]!r}")
    return model


def compute_rate(config: dict[str, Any], step: int, steps: int) -> float:
    """Learning rate of a step: a linear warm-up, then a cosine to 0."""
    warm_up = max(1, round(config["warm_up"] * steps))
    if step < warm_up:
        return config["learning_rate"] * (step + 1) / warm_up
    return config["learning_rate"] * 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))


def compute_loss(answer: Tensor, labels: Tensor, config: dict[str, Any]) -> Tensor:
    """Cross-entropy of the labels; of one output, that of its sigmoid."""
    if config["binary"]:
        return binary_cross_entropy_with_logits(answer[:, 0].float(), labels.float())
    return cross_entropy(answer.float(), labels, label_smoothing=config["smoothing"])


def train(model: nn.Module, data: Dataset, test: Dataset, config: dict[str, Any], device: str, workers: int) -> list:
    """Train the model; return the log, one entry per epoch."""
    chance, noise = random.Random(config["seed"]), torch.Generator(device).manual_seed(config["seed"])
    order = torch.Generator().manual_seed(config["seed"])
    loader = DataLoader(data, config["batch"], shuffle=True, generator=order, num_workers=workers, drop_last=False)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": config["weight_decay"]}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups)
    steps, step, log, started = len(loader) * config["epochs"], 0, [], time.monotonic()
    for epoch in range(1, config["epochs"] + 1):
        model.train()
        total = 0.0
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            for group in optimizer.param_groups:
                group["lr"] = compute_rate(config, step, steps)
            patches = None
            if chance.random() < config["dropping"]:
                grid = model.patch_embed.grid_size[0]
                share = chance.uniform(config["fewest"], 1.0)
                patches = draw_patches(len(images), grid, share, noise)
            with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=device.startswith("cuda")):
                answer = model(images) if patches is None else compute_logits(model, images, patches)
            loss = compute_loss(answer[0] if isinstance(answer, tuple) else answer, labels, config)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), config["clip"])
            optimizer.step()
            total, step = total + loss.item() * len(labels), step + 1
        accuracy = measure_accuracy(model, test, config, device, workers)
        entry = {"epoch": epoch, "loss": total / len(data), "accuracy": accuracy}  # type: ignore[arg-type]
        log.append(entry | {"seconds": round(time.monotonic() - started, 1)})
        print(json.dumps(log[-1]), flush=True)
    return log


@torch.no_grad()
def measure_accuracy(model: nn.Module, test: Dataset, config: dict[str, Any], device: str, workers: int) -> float:
    """Share of the test images whose label is predicted."""
    model.eval()
    hits = 0
    for images, labels in DataLoader(test, config["batch"], num_workers=workers):
        answer = model(images.to(device))
        predicted = (answer[:, 0] > 0).long() if config["binary"] else answer.argmax(-1)
        hits += int((predicted.cpu() == labels).sum())
    return hits / len(test)  # type: ignore[arg-type]


def finetune(arguments: argparse.Namespace) -> Path:
    """Run a recipe and write weights and log; returns the path of the weights."""
    config = read_recipe(arguments.recipe)
    changes = {"model": arguments.model, "epochs": arguments.epochs, "batch": arguments.batch}
    config |= {key: value for key, value in changes.items() if value is not None}
    config |= {"arguments": json.loads(arguments.arguments)} if arguments.arguments else {}
    torch.manual_seed(config["seed"])
    spec = f"{config['dataset']}:{arguments.data}?split="
    classes = open_dataset(spec + config["train"]).classes or ()
    model = build_model(config, len(classes), arguments.init, not arguments.random).to(arguments.device)
    about = {**resolve_model_data_config(model), "input_size": (3, *model.patch_embed.img_size)}
    augment = create_transform(
        **about,
        is_training=True,
        scale=(config["smallest_crop"], 1.0),
        hflip=config["flip"],
        color_jitter=None,
    )
    data = Labelled(spec + config["train"], augment, arguments.images)
    test = Labelled(spec + config["test"], Preprocess.from_timm(about), arguments.images)
    log = train(model, data, test, config, arguments.device, arguments.workers)
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"{config['model']}-{arguments.recipe}.safetensors"
    weights = {key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()}
    save_file(weights, path, metadata={"recipe": arguments.recipe, "classes": json.dumps(classes)})
    facts = {"recipe": arguments.recipe, "config": config, "images": len(data), "torch": torch.__version__, "log": log}
    path.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n")
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", required=True, help="cifar10, cifar100 or mura")
    parser.add_argument("--data", required=True, help="folder of the dataset")
    parser.add_argument("--out", type=Path, required=True, help="folder for weights and log")
    parser.add_argument(
        "--init", type=Path, help="weights to begin with (timm, DeiT or MAE); else timm's own are fetched"
    )
    parser.add_argument("--random", action="store_true", help="begin with random weights")
    parser.add_argument("--model", help="another model of timm than the recipe's")
    parser.add_argument("--arguments", help="further arguments of the model, as JSON")
    parser.add_argument("--epochs", type=int, help="instead of the recipe's")
    parser.add_argument("--batch", type=int, help="images per step, instead of the recipe's")
    parser.add_argument("--images", type=int, help="use the first so many of each split, to try it out")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int, default=0, help="processes that read images")
    try:
        print(finetune(parser.parse_args()))
    except VitreousError as problem:
        print(f"finetune: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
