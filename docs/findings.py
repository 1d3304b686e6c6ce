"""Fills what README.md and docs/how-to/which-method.md quote of the study from docs/study/results; `--check` compares.

python docs/findings.py [--check]
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "study" / "results"
MARKED = re.compile(r"(<!-- (numbers|findings) -->\n).*?(<!-- end -->)", re.DOTALL)
MODELS = ("ViT-Tiny", "DeiT-Tiny")
COSTS = {  # forward passes, a backward counted as two
    "genatt": "3", "tokentm": "3", "decompx+skipplus": "≤ 3", "decompx+plus": "3", "fullgrad@libra+plus": "3", "attnlrp": "3",
    "decompx(question='probability')+plus": "3", "attnlrp(question='probability')+plus": "3", "temper": "3", "fuse": "6",
    "anneal(of='temper', coalitions=32)": "51", "anneal": "54", "tis(masks=256)": "129", "tis": "513", "random": "0",
}  # fmt: skip
PUBLISHED = (
    "genatt", "tokentm", "attcat", "transatt", "legrad", "conservativelrp", "attnlrp", "decompx", "decompx+plus",
    "decompx+skipplus", "fullgrad+plus", "fullgrad@libra", "fullgrad@libra+plus",
)  # fmt: skip
COLUMNS = (  # heading, table, models, metric
    ("faithful", "beyond", MODELS, "faithfulness"),
    ("AP, pets", "beyond-pets", MODELS, "ap"),
    ("AP, Scenes", "beyond-scenes", ("Scenes",), "ap"),
    ("classes told apart, Scenes", "beyond-scenes", ("Scenes",), "class_discrimination"),
)


@cache
def rows(name: str) -> tuple[dict[str, str], ...]:
    with (RESULTS / f"{name}.csv").open(encoding="utf-8") as file:
        return tuple(csv.DictReader(file))


def one(name: str, **wanted: str) -> dict[str, str]:
    found = [row for row in rows(name) if all(row[key] == value for key, value in wanted.items())]
    if len(found) != 1:
        raise SystemExit(f"{name}.csv has {len(found)} rows of {wanted}; python docs/study/make.py makes them")
    return found[0]


def told(row: dict[str, str], digits: int = 3, plus: bool = True) -> str:
    value = float(row["effect" if "effect" in row else "mean"])
    ends = ", ".join(f"{float(row[end]):.{digits}f}" for end in ("low", "high"))
    return f"{value:{'+' if plus else ''}.{digits}f} [{ends}]".replace("-", "−")


# ── what is quoted ───────────────────────────────────────────────────────────────────────────────


def numbers() -> str:
    lines = [["method", "passes", *(heading for heading, *_ in COLUMNS)], ["---", *["---:"] * (1 + len(COLUMNS))]]
    for method, cost in COSTS.items():
        lines.append([f"`{method}`", cost, *(" / ".join(means(method, *where)) for _, *where in COLUMNS)])
    lines.append(["*pictures*", "", *(one(table, model=models[0], metric=metric, method="temper")["n"] for _, table, models, metric in COLUMNS)])  # fmt: skip
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def means(method: str, table: str, models: tuple[str, ...], metric: str) -> Iterator[str]:
    for model in models:
        yield f"{float(one(table, model=model, metric=metric, method=method)['mean']):.3f}"


def beside(name: str, metric: str, method: str, against: str, digits: int = 3, dataset: str | None = None) -> str:
    where = {"dataset": dataset} if dataset else {}
    said = (
        f"{told(one(name, model=model, metric=metric, method=method, against=against, **where), digits)} on {model}"
        for model in MODELS
    )
    return ", ".join(said)


def best_published() -> tuple[str, ...]:
    """The most faithful of the published methods of one backward, for each model."""
    return tuple(
        max(
            PUBLISHED,
            key=lambda method: float(one("beyond", model=model, metric="faithfulness", method=method)["mean"]),
        )
        for model in MODELS
    )


def findings() -> str:
    pictures = one("beyond", model=MODELS[0], metric="faithfulness", method="fuse")["n"]
    rivals = best_published()
    ahead = ", ".join(
        f"{told(one('beyond-pairs', model=model, metric='faithfulness', method='temper', against=rival))} over `{rival}` on {model}"
        for model, rival in zip(MODELS, rivals, strict=True)
    )
    close = beside("beyond-pairs", "faithfulness", "temper", "attnlrp(question='probability')+plus")
    single, part, pair = tau("scenes", "single"), tau("scenes", "part"), tau("scenes-pair", "pair")
    return "\n".join(
        [
            f"- **Past the papers.** `temper`, one backward pass, is more faithful than each of {len(PUBLISHED)} published methods of that cost: {ahead} (against AttnLRP under PLUS asked about the probability, which is no paper's: {close}). `fuse`, two backward passes, is more faithful than",
            f"  TIS with 1024 masks at 1.2 % of its cost: {beside('beyond-pairs', 'faithfulness', 'fuse', 'tis')} ({pictures} pictures that chose nothing).",
            f"- **PLUS lifts DecompX**, {beside('skipplus-pairs', 'mean_aopc', 'decompx+plus', 'decompx', 1)} (points of mean AOPC), but **TokenTM does not beat GenAtt** on",
            f"  masks of pets: {beside('tokentm-pets-pairs', 'miou', 'tokentm', 'genatt')} (mIoU).",
            f"- **Faithfulness notices the truth.** Where the evidence is known, deletion and insertion by token removal put methods in the order of their AP: Kendall's τ {single} with one",
            f"  object, {pair} with two in the frame, and only {part} where a part of the object decides ([one small model](docs/study/scenes.md)).",
        ]
    )


def tau(name: str, dataset: str) -> str:
    row = one(f"{name}-orders", dataset=dataset, metric="faithfulness", truth="ap", among="all")
    return f"{float(row['tau']):.2f} [{float(row['tau_low']):.2f}, {float(row['tau_high']):.2f}]"


def filled(page: str) -> str:
    made = {"numbers": numbers, "findings": findings}
    return MARKED.sub(lambda found: f"{found[1]}\n{made[found[2]]()}\n\n{found[3]}", page)


def main() -> int:
    pages = (ROOT / "README.md", ROOT / "docs" / "how-to" / "which-method.md")
    stale = [
        page.name for page in pages if filled(page.read_text(encoding="utf-8")) != page.read_text(encoding="utf-8")
    ]
    if "--check" in sys.argv:
        print(f"not what was measured: {', '.join(stale)}; run python docs/findings.py" if stale else "up to date")
        return 1 if stale else 0
    for page in pages:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
