"""The Python lines that reproduce what is on the screen."""

from __future__ import annotations

from collections.abc import Sequence

from vitreous.web.pictures import Named
from vitreous.web.roster import Entry


def lines(
    entry: Entry,
    picture: str,
    targets: Sequence[int],
    methods: Sequence[str],
    question: str,
    removed: Sequence[int] = (),
    classes: Sequence[str] | None = None,
) -> str:
    """A program that stands for itself; every value in it is written by `repr`."""
    scene = Named.read(picture)
    source = (
        "Image.open('picture.png')  # the file that you dropped"
        if scene is None
        else f"Image.fromarray({scene.python}.image)"
    )
    names = "" if classes is None else "  # " + ", ".join(" ".join(classes[target].split()) for target in targets)
    code = [
        *(["import torch"] if removed else []),
        "import vitreous",
        "from PIL import Image",
        "",
        f"vit = {entry.python}",
        f"picture = {source}",
        f"targets = [{list(targets)!r}]{names}",
        f"methods = {list(methods)!r}",
        "",
        "maps = {",
        f"    method: vitreous.explain(vit, picture, targets, method, {question!r})",
        "    for method in methods",
        "}",
        "for number, found in enumerate(maps.values()):",
        '    found.plot().savefig(f"map-{number}.png")',
        '    found.save(f"map-{number}.safetensors")',
    ]
    if removed:
        code += [
            "",
            "# what the model says when these patches truly leave",
            "probe = vitreous.Probe(vit, vit.preprocess.batch([picture]))",
            "keep = torch.ones(1, 1, probe.layout.patches, dtype=torch.bool)",
            f"keep[0, 0, {list(removed)!r}] = False",
            "said = probe.logits(keep)[0, 0].softmax(-1)",
            "for index in said.topk(min(5, len(said))).indices.tolist():",
            '    print(f"{vit.class_name(index)}: {said[index]:.1%}")',
        ]
    return "\n".join(code) + "\n"
