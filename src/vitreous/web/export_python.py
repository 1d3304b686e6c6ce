"""The Python program that reproduces what is on the page."""

from __future__ import annotations

from collections.abc import Sequence

from vitreous.web.budget import SampleBudget
from vitreous.web.image_store import SceneName
from vitreous.web.model_pool import ModelEntry


def write_program(
    entry: ModelEntry,
    image: str,
    targets: Sequence[int],
    plans: Sequence[SampleBudget],
    question: str,
    removed: Sequence[int] = (),
    classes: Sequence[str] | None = None,
) -> str:
    """Return a complete program; every value in it is written by `repr`."""
    scene = SceneName.parse(image)
    source = (
        "Image.open('image.png')  # the file that you dropped"
        if scene is None
        else f"Image.fromarray({scene.python}.image)"
    )
    names = "" if classes is None else "  # " + ", ".join(" ".join(classes[target].split()) for target in targets)
    notes = [
        f"# {plan.spec}: {plan.asked:,} {plan.option} were requested ({plan.requested!r}), about {plan.seconds:.0f} s on the server"
        for plan in plans
        if plan.used < plan.asked
    ]
    code = [
        *(["import torch"] if removed else []),
        "import vitreous",
        "from PIL import Image",
        *(["from vitreous.bench.model_options import load_model"] if entry.arguments else []),
        "",
        f"vit = {entry.python}",
        f"image = {source}",
        f"targets = [{list(targets)!r}]{names}",
        *notes,
        f"methods = {[plan.spec for plan in plans]!r}",
        "",
        "maps = {",
        f"    method: vitreous.explain(vit, image, targets, method, {question!r})",
        "    for method in methods",
        "}",
        "for number, attribution in enumerate(maps.values()):",
        '    attribution.plot().savefig(f"map-{number}.png")',
        '    attribution.save(f"map-{number}.safetensors")',
    ]
    if removed:
        code += [
            "",
            "# the prediction without these patches; their tokens are removed from the input",
            "probe = vitreous.Probe(vit, vit.preprocess.batch([image]))",
            "keep = torch.ones(1, 1, probe.layout.patches, dtype=torch.bool)",
            f"keep[0, 0, {list(removed)!r}] = False",
            "probabilities = probe.logits(keep)[0, 0].softmax(-1)",
            "for index in probabilities.topk(min(5, len(probabilities))).indices.tolist():",
            '    print(f"{vit.class_name(index)}: {probabilities[index]:.1%}")',
        ]
    return "\n".join(code) + "\n"
