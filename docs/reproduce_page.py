"""Writes docs/reproduce.md from the shipped plans; `--check` tests whether it is up to date.

python docs/reproduce_page.py [--check]
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from vitreous.bench.reproduce import PLACEHOLDER, Reproduction, list_reproductions
from vitreous.metrics.published import published_orders, published_table
from vitreous.report.formatting import format_count

PAGE = Path(__file__).with_name("reproduce.md")
PAPERS = {"tis": "TIS", "tokentm": "TokenTM", "skipplus": "SkipPLUS"}

HEAD = """# Reproduce the papers

Written by `python docs/reproduce_page.py` from the plans in `src/vitreous/reproductions`.

Every table and figure below is one command. Its plan specifies the models and their checkpoints, the datasets and splits, the
number of images and the seed of their selection, preprocessing, the explained class, rows and metrics; you provide the paths:

```bash
vitreous reproduce tis:table1 --data imagenet-val=/data/imagenet
```

writes `runs/tis-table1/report.html`: the table in the paper's layout and, if the paper prints numbers, the paper's value, ours with its
95 % interval, their difference, and the agreement of the orders of methods. Where the paper states an order in words (all of
SkipPLUS), the report counts on how many pairs of methods and columns the run agrees. Computed results are stored: run the command
again after it was stopped, or with more images.

| option | |
|---|---|
| `--list` | all tables and figures |
| `--data KEY=PATH` | path of a dataset ([layouts](datasets.md)), or a dataset spec such as `pets:/data/pets` instead of it |
| `--images 50` | fewer images; the result is marked as reduced |
| `--subset [KEY=]FILE` | the images to use, such as the authors' list: indices in the order of the dataset, or file names; all of the list are used |
| `--models KEY` | only this model of several |
| `--models KEY=NAME?argument=value` | another model instead; the result is marked as reduced |
| `--checkpoint KEY=FILE` | local weights of a model; needed for models marked with * |
| `--dry-run` | the plan as TOML, and its cost |

A paper's rows and metrics on your own models and data, outside its tables: `vitreous bench --protocol tokentm --method protocol …`.
[The study](study/reproduction.md) compares the published orders with those of small models.

The error message for missing data or checkpoints says where to get them. The plans are tested on toy copies of all datasets
with tiny models: every cell of every layout is filled. Numbers and stated orders ship in `src/vitreous/published`
([decisions](decisions.md#what-the-papers-leave-open) about details that the papers do not specify).
"""


def row_of(plan: Reproduction) -> str:
    """Row of the table: command, data, what is fixed, deviations."""
    data = " ".join(f"[`{key}`]" if entry.get("optional") else f"`{key}`" for key, entry in plan.data.items())
    models = ", ".join(f"`{key}`{'*' if 'needs' in entry else ''}" for key, entry in plan.models.items())
    images = "; ".join(describe_images(plan, dataset) for dataset in plan.datasets)
    printed = "; published numbers" if published_table(plan.name) else ""
    stated = published_orders().get(plan.name, ())
    printed += f"; {format_count(len(stated), 'stated order')}" if stated else ""
    fixed = f"{models}; {format_count(len(plan.methods), 'row')}; {images}{printed}"
    return f"| `{plan.name}` | {plan.title} | {data} | {fixed} | {' '.join(plan.notes)} |"


def describe_images(plan: Reproduction, dataset) -> str:
    key, count = PLACEHOLDER.findall(dataset["spec"])[0], dataset.get("images")
    if count is None:
        return f"all images of `{key}`"
    return f"{count} {'image' if count == 1 else 'images'} of `{key}` (seed {dataset.get('seed', plan.seed)})"


def assumptions(prefix: str, plans: Mapping[str, Reproduction]) -> tuple[str, ...]:
    """What is assumed for all plans of a paper."""
    return next(plan.assumes for name, plan in plans.items() if name.startswith(f"{prefix}:"))


def page() -> str:
    parts, plans = [HEAD], list_reproductions()
    for prefix, title in PAPERS.items():
        parts += [
            f"## {title}",
            "",
            f"Assumed: {' '.join(assumptions(prefix, plans))}",
            "",
            "| `vitreous reproduce …` | shows | `--data` | fixed | not in the paper, or not as in it |",
        ]
        parts += ["|---|---|---|---|---|"]
        parts += [row_of(plan) for name, plan in plans.items() if name.startswith(f"{prefix}:")]
        parts.append("")
    parts += ["## What to get", "", "| key | data | layout |", "|---|---|---|"]
    data = {key: entry for plan in plans.values() for key, entry in plan.data.items()}
    parts += [f"| `{key}` | {entry['what']} | {entry['layout']} |" for key, entry in data.items()]
    parts += ["", "| key | model | checkpoint |", "|---|---|---|"]
    models = {(key, entry["name"]): entry for plan in plans.values() for key, entry in plan.models.items()}
    parts += [f"| `{key}` | `{name}` | {entry.get('needs', 'of timm')} |" for (key, name), entry in models.items()]
    parts += ["", "Not covered: figures that show how a method works (TIS, figure 1; TokenTM, figures 1 to 3).", ""]
    return "\n".join(parts).replace("<wnid>", "&lt;wnid&gt;").rstrip() + "\n"


if __name__ == "__main__":
    text = page()
    if "--check" in sys.argv:
        current = PAGE.exists() and PAGE.read_text() == text
        sys.exit(0 if current else "docs/reproduce.md is not what the plans say; run python docs/reproduce_page.py")
    PAGE.write_text(text)
