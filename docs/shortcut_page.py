"""Fine-tunes the biased Scenes model with evidence masks and without, and writes the numbers of docs/how-to/shortcut.md.

    python docs/shortcut_page.py            # 120 steps of each, some ten minutes on one core; writes numbers and figure
    python docs/shortcut_page.py --check    # says whether the page has the stored numbers
    python docs/shortcut_page.py --take F   # takes numbers and figure of a run with --out F

Both models are trained on the same 512 images, on which the stamp always names the class. Only the loss on the maps differs.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

import vitreous
from vitreous.scenes import CLASSES, Scene, Scenes, tensor

HERE = Path(__file__).resolve().parent
PAGE, FIGURE, RESULTS = HERE / "how-to" / "shortcut.md", HERE / "images" / "shortcut.png", HERE / "shortcut.json"
MARKED = re.compile(r"(<!-- numbers -->\n).*?(<!-- end -->)", re.DOTALL)
METHOD, JUDGES = "decompx+skipplus", ("decompx+skipplus", "temper")
TRAINING_SEED, TEST_SEED = 31, 32  # neither is that of the model's own training
MARKS = ("aligned", "moved", "absent")


def inputs(scenes: list[Scene]) -> Tensor:
    return torch.stack([tensor(scene) for scene in scenes])


def masks(scenes: list[Scene], of: Callable[[Scene], Any]) -> Tensor:
    return torch.from_numpy(np.stack([of(scene) for scene in scenes]))


def get_outline(scene: Scene) -> Any:
    return scene.objects[0].mask


def fine_tune(vit: Any, scenes: list[Scene], steps: int, batch: int, weight: float, log: Callable[[str], None]) -> None:
    """Train on labels and, with a weight, on the share of the map that lies outside of the object."""
    vit.module.requires_grad_()
    optimizer = torch.optim.AdamW(vit.module.parameters(), lr=2e-4, weight_decay=0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 + 0.5 * math.cos(math.pi * step / steps))
    order = torch.Generator().manual_seed(0)
    queue: list[int] = []
    for step in range(steps):
        if len(queue) < batch:
            queue = torch.randperm(len(scenes), generator=order).tolist()
        chosen, queue = [scenes[index] for index in queue[:batch]], queue[batch:]
        images = inputs(chosen).to(vit.device)
        labels = torch.tensor([scene.target for scene in chosen], device=vit.device)
        loss = error = functional.cross_entropy(vit.module(images), labels)
        outside = torch.zeros(())
        if weight:
            attribution = vitreous.explain(vit, images, labels.tolist(), METHOD, differentiable=True)
            outside = vitreous.losses.mass_outside(attribution, masks(chosen, get_outline).to(vit.device))
            loss = error + weight * outside
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 20 == 0 or step == steps - 1:
            log(f"step {step}: cross entropy {error.item():.3f}, outside {outside.item():.3f}")
    vit.module.requires_grad_(False)


def measure(vit: Any, count: int, explained: int) -> dict[str, float]:
    """Accuracy with and without the stamp, statistics of maps, and the effect of removing the stamp or the object."""
    row: dict[str, float] = {}
    albums = {mark: list(Scenes("shortcut", count, TEST_SEED, mark=mark)) for mark in MARKS}
    for mark, scenes in albums.items():
        with torch.no_grad():
            parts = inputs(scenes).to(vit.device).split(32)
            predicted = torch.cat([vit.module(part).argmax(-1) for part in parts]).cpu()
        row[mark] = float((predicted == torch.tensor([scene.target for scene in scenes])).float().mean())
        if mark == "moved":
            row["follows"] = float((predicted == torch.tensor([scene.mark for scene in scenes])).float().mean())
    scenes = albums["moved"][:explained]
    stamps, outlines = masks(scenes, lambda scene: scene.spurious), masks(scenes, get_outline)
    for method in JUDGES:
        attribution = vitreous.explain(vit, inputs(scenes), None, method).cpu()
        above, mass = vitreous.evaluate(
            vit,
            None,
            attribution,
            ["class_discrimination", "energy_pointing"],
            objects=stamps.to(torch.int8),
            rivals=outlines.to(torch.int8),
        )
        row[f"above {method}"], row[f"mass {method}"] = float(above.scores.mean()), float(mass.scores.mean())
    probe = vitreous.Probe(vit, inputs(scenes))
    for name, mask in (("stamp", stamps), ("thing", outlines)):
        row[f"without {name}"] = probability_drop(probe, mask)
    return row


def probability_drop(probe: Any, mask: Tensor) -> float:
    """Mean fall of the predicted class's probability when the patches that a mask overlaps are removed."""
    rows, columns = probe.layout.grid
    touched = functional.adaptive_max_pool2d(mask[:, None].float(), (rows, columns)).flatten(1) > 0
    keep = torch.stack([torch.ones_like(touched), ~touched], 1)
    probabilities = probe.logits(keep.to(probe.images.device)).softmax(-1).cpu()
    predicted = probabilities[:, 0].argmax(-1)
    chosen = probabilities[torch.arange(len(predicted)), :, predicted]
    return float((chosen[:, 0] - chosen[:, 1]).mean())


# ── page ─────────────────────────────────────────────────────────────────────────────────────────

ROWS = {
    "aligned": "accuracy, stamp names the class",
    "moved": "accuracy, stamp names another class",
    "follows": "… and the answer is what the stamp names",
    "absent": "accuracy, no stamp",
    "without stamp": "fall of the predicted probability when the stamp is removed",
    "without thing": "… when the object is removed",
    **{f"above {method}": f"P(stamp above object), `{method}`" for method in JUDGES},
    **{f"mass {method}": f"positive mass on the stamp, `{method}`" for method in JUDGES},
}
COLUMNS = {
    "before": "before",
    "labels": "labels alone",
    "masks": "labels and masks",
    "scenes": "`scenes`, trained without the shortcut",
}


def table(results: dict[str, Any]) -> str:
    """The numbers as a Markdown table."""
    lines = [f"| | {' | '.join(COLUMNS.values())} |", "|---|" + "---|" * len(COLUMNS)]
    for key, name in ROWS.items():
        cells = [results["rows"][column][key] for column in COLUMNS]
        lines.append(f"| {name} | {' | '.join(f'{value:.2f}' for value in cells)} |")
    about = results["settings"]
    note = (
        f"On {'the CPU' if about['device'] == 'cpu' else 'a GPU'}, {about['steps']} steps of {about['batch']} images, {about['images']} images with labels and masks; {about['count']} test "
        f"images of each kind, {about['explained']} of them explained and changed (stamp moved)."
    )
    return "\n".join([*lines, "", note])


def filled(page: str, results: dict[str, Any]) -> str:
    return MARKED.sub(lambda match: f"{match[1]}\n{table(results)}\n\n{match[2]}", page)


def draw(models: dict[str, Any], path: Path, count: int = 3) -> None:
    """Maps of the predicted class of each model on scenes whose stamp names another class."""
    from matplotlib.figure import Figure

    from vitreous.draw import overlay_image

    scenes = list(Scenes("shortcut", count, TEST_SEED + 1, mark="moved"))
    figure = Figure(figsize=(2.5 * (1 + len(models)), 2.85 * count), layout="constrained")
    axes = figure.subplots(count, 1 + len(models), squeeze=False)
    for row, scene in zip(axes, scenes, strict=True):
        row[0].imshow(scene.image)
        row[0].set_title(f"{CLASSES[scene.target]},\nstamped “{CLASSES[scene.mark or 0]}”", fontsize=10)
        for axis, (name, vit) in zip(row[1:], models.items(), strict=True):
            attribution = vitreous.explain(vit, inputs([scene]), None, "temper").cpu()
            axis.imshow(np.asarray(overlay_image(attribution)))
            answer = CLASSES[int(attribution.targets[0])]
            axis.set_title(f"{COLUMNS[name]}:\n{answer}", fontsize=10)
        for axis in row:
            axis.set_axis_off()
    figure.savefig(path, dpi=80)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train both models, measure all, and draw the figure."""
    scenes = list(Scenes("shortcut", arguments.images, TRAINING_SEED))
    start = vitreous.load("scenes-biased", device=arguments.device)
    models: dict[str, Any] = {"before": start}
    rows = {"before": measure(start, arguments.count, arguments.explained)}
    for name, weight in (("masks", 2.0), ("labels", 0.0)):
        vit = vitreous.wrap(copy.deepcopy(start.module), preprocess=start.preprocess)
        fine_tune(
            vit, scenes, arguments.steps, arguments.batch, weight, lambda line, n=name: print(n, line, flush=True)
        )
        models[name], rows[name] = vit, measure(vit, arguments.count, arguments.explained)
        print(name, json.dumps(rows[name]), flush=True)
        if arguments.out:
            state = {key: value.half().cpu().contiguous() for key, value in vit.module.state_dict().items()}
            save_file(state, arguments.out / f"{name}.safetensors")
    rows["scenes"] = measure(vitreous.load("scenes", device=arguments.device), arguments.count, arguments.explained)
    models = {name: models[name] for name in COLUMNS if name in models}
    draw(models, arguments.out / FIGURE.name if arguments.out else FIGURE)
    settings = {key: getattr(arguments, key) for key in ("device", "steps", "batch", "images", "count", "explained")}
    results = {
        "settings": settings,
        "rows": {name: {k: round(v, 4) for k, v in row.items()} for name, row in rows.items()},
    }
    (arguments.out / RESULTS.name if arguments.out else RESULTS).write_text(json.dumps(results, indent=1) + "\n")
    return results


def main(options: list[str]) -> int | str:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only compare the page with the stored numbers")
    parser.add_argument("--out", type=Path, help="folder for numbers and figure, in place of the documentation")
    parser.add_argument("--take", type=Path, help="folder of an earlier run with --out")
    parser.add_argument("--device", default="cpu")
    for name, default in (("steps", 120), ("batch", 8), ("images", 512), ("count", 100), ("explained", 24)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args(options)
    page = PAGE.read_text()
    if arguments.check:
        is_current = page == filled(page, json.loads(RESULTS.read_text()))
        return 0 if is_current else "docs/how-to/shortcut.md is out of date; run python docs/shortcut_page.py"
    if arguments.take:
        RESULTS.write_text((arguments.take / "shortcut.json").read_text())
        FIGURE.write_bytes((arguments.take / "shortcut.png").read_bytes())
        PAGE.write_text(filled(page, json.loads(RESULTS.read_text())))
        return 0
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
    results = run(arguments)
    if not arguments.out:
        PAGE.write_text(filled(page, results))
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
