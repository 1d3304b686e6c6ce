"""Writes docs/metrics.md from the registry and the protocols; `--check` tests whether it is up to date.

python docs/metrics_page.py [--check]
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from generated_page import write_or_check
from methods_page_text import papers

import vitreous
from vitreous.cli.catalogue import format_bounds
from vitreous.metrics.metric import METRICS
from vitreous.metrics.protocols import PROTOCOLS, Protocol

PAGE = Path(__file__).with_name("metrics.md")
FAMILIES = {
    "faithfulness": "Does the output change when the patches with high scores are removed?",
    "localisation": "Does the map lie where the object is?",
    "robustness": "Does the map depend on model and class, and not on noise?",
    "complexity": "How concentrated is the map, and do its scores add up?",
}
DIRECTION = {True: "more is better", False: "less is better", None: "no better direction"}

HEAD = """# Metrics and protocols

*Written from the registry by `python docs/metrics_page.py`.*

A metric returns one number per map, or NaN if it is undefined; undefined maps are counted. Every result records the protocol that
produced it (`MetricResult.protocol`). The value of a dataset is the mean over its maps, or pooled over pixels if the published evaluation pools;
bootstrap intervals follow the same rule.

**Three classes are chosen separately**: the class that is explained (`target` of `explain`), the class whose probability is measured (`track`), and the
class that counts as correct (`judge`). They differ between papers.

**Notation.** x the image · S the map over pixels, S⁺ its positive part · f the logits, p the probability of the tracked class · r a share of
patches or pixels, the top r being those of highest score · t the explained score

**Equal scores** give no advantage by their order: a peak is drawn at random from equal ones, average precision treats all
pixels of a score together, and patches of equal score are removed in an order drawn from the image's content. A constant map therefore scores as
a random one; thresholded at its mean it selects no pixels.

Masks are 1 on the object, 0 outside, and −1 for pixels that are ignored.
"""


def entry(facts: dict[str, Any], bibliography: dict[str, str]) -> list[str]:
    metric = METRICS[facts["name"]]
    reads = " and ".join(facts["needs"]) or " or ".join(name for name in facts["takes"] if name != "labels")
    promises = [
        DIRECTION[metric.higher_is_better],
        f"from {format_bounds(facts)}" if metric.bounds else "",
        "the same score for a·map + b" if metric.affine_invariant else "",
        "pooled over images" if facts["pooled"] else "",
        f"reads {reads}" if reads else "",
        cost(metric.forwards),
    ]
    options = [(key, value) for key, value in metric.known_options.items() if key != "preset"]
    lines = {
        "Facts": " · ".join(filter(None, promises)),
        "Options": ", ".join(f"`{key}={short(value)}`" for key, value in options),
        "Presets": ", ".join(f"`preset={name!r}` ({setting(metric.presets[name])})" for name in metric.presets),
        "Also called": ", ".join(f"`{alias}`" for alias in facts["aliases"]),
        "Paper": bibliography.get(metric.paper, metric.paper),
    }
    facts_list = [f"- **{label}**: {text}" for label, text in lines.items() if text]
    return [f"### {metric.name}", "", *about(metric.function), "", f"    {metric.formula}", "", *facts_list, ""]


def cost(forwards: int | str) -> str:
    return "" if not forwards else str(forwards) if "explanation" in str(forwards) else f"{forwards} forwards"


def short(value: Any) -> str:
    """A value as it would be written; of a long even grid the ends and the step."""
    long = isinstance(value, tuple) and len(value) > 4 and len({round(b - a, 9) for a, b in pairwise(value)}) == 1
    return f"({value[0]!r}, {value[1]!r}, …, {value[-1]!r})" if long else repr(value)


def setting(preset: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={short(value)}" for key, value in preset.items()) or "the defaults"


def about(function: Any) -> list[str]:
    """The whole docstring: what it is, and what its options mean."""
    return (inspect.getdoc(function) or "").splitlines()


def protocol_part(protocol: Protocol, bibliography: dict[str, str]) -> list[str]:
    columns = [f"| {title} | `{c.metric}` | {c.explained} | {c.data} |" for title, c in protocol.columns.items()]
    rows = [f"| {title} | `{spec}` |" for title, spec in protocol.rows.items()]
    models = [f"`{model}`" for model in protocol.models]
    models += [f"`{model}` fine-tuned on {data}" for data, model in protocol.fine_tuned.items()]
    return [
        f"### Protocol {protocol.name}",
        "",
        f"{bibliography[protocol.paper]}. Models: {', '.join(models)}. Images as "
        f"`Preprocess.published({protocol.preprocess!r}, own)` prepares them.",
        "",
        "| published column | metric | explained class | data |",
        "|---|---|---|---|",
        *columns,
        "",
        "| published row | method |",
        "|---|---|",
        *rows,
        "",
        *(f"- {note}" for note in protocol.notes),
        "",
    ]


def page() -> str:
    bibliography, all_facts = papers(), [facts for facts in vitreous.list_metrics() if facts["origin"] == "vitreous"]
    others = {facts["family"]: facts["family"].capitalize() for facts in all_facts if facts["family"] not in FAMILIES}
    families = {**FAMILIES, **others}
    parts = [HEAD, "| | metrics |", "|---|---|"]
    for family, question in families.items():
        names = " · ".join(f"[{facts['name']}](#{facts['name']})" for facts in all_facts if facts["family"] == family)
        parts.append(f"| {question} | {names} |")
    for family, question in families.items():
        parts += ["", f"## {family.capitalize()}", "", question, ""]
        for facts in all_facts:
            parts += entry(facts, bibliography) if facts["family"] == family else []
    parts += [
        "## Protocols",
        "",
        "The evaluations of four papers, under our names: `vitreous bench --protocol NAME` runs one, `vitreous metrics --protocol NAME` shows it. "
        "Explained class: *predicted*, the *label*, or the class of the largest *mask*.",
        "",
    ]
    for name in PROTOCOLS:
        parts += protocol_part(PROTOCOLS[name], bibliography)
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    write_or_check(PAGE, page())
