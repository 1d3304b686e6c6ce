"""Text of docs/methods.md and docs/composes.md, from the registry, the bibliography and counted costs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from combination_table import ENDINGS, Combination, list_combinations, restart_differs

import vitreous
from vitreous.explanation import cautions
from vitreous.methods.fold import Fold
from vitreous.methods.folds import plus, rollout, skipplus
from vitreous.methods.method import METHODS, SPEC_ALIASES, Method
from vitreous.methods.option_meanings import SHARED, option_meanings, parameters
from vitreous.methods.options import write_options

HERE = Path(__file__).parent

FIRST = ("Gradients", "Class activation maps", "Attention", "Relevance and decomposition")  # other families follow
LAST = ("Of this library", "Others", "Control")
NEEDS = {
    "BlackBox": "any classifier",
    "Network": "a network",
    "ViT": "a ViT",
}  # by the type of model that a method needs
FEWER: dict[str, dict[str, int]] = {  # for the images on the page only, so that they are computed in minutes
    "rise": {"masks": 400},
    "tis": {"masks": 256},
    "lime": {"samples": 300},
    "kernelshap": {"samples": 300},
    "hsic": {"masks": 200},
    "smoothgrad": {"samples": 20},
    "ig": {"steps": 20},
}
NOTATION = """\
t the explained score · x the image · X_l the tokens that enter block l (X without index: at the block that the method
reads, by default the first), a their channels for the CAMs · g = ∂t/∂X · A attention, head h, to token i from
token j · G = ∂t/∂A · ρ the row that the head reads (class token, mean of patches, …) · fₕⱼ = W_o vₕⱼ, the contribution of token
j through head h · Y the stream between attention and MLP · L blocks · products ∏ₗ run from the last block to the first · ⊙ and ⊘ element by
element · M masks m"""


ACCENTS = {r"{\"o}": "ö", r"{\"u}": "ü", r"{\'a}": "á", r"{\`a}": "à", r"{\c{c}}": "ç"}


def papers() -> dict[str, str]:
    """Author, title, place and year by key."""
    text = (HERE / "references.bib").read_text()
    for latex, letter in ACCENTS.items():
        text = text.replace(latex, letter)
    papers_by_key = {}
    for key, rest in re.findall(r"^@\w+\{(\w+), (.*)\}$", text, flags=re.MULTILINE):
        entry = dict(re.findall(r"(\w+)=\{((?:[^{}]|\{[^{}]*\})*)\}", rest))
        where = entry.get("booktitle") or entry.get("journal") or ""
        title = entry["title"].replace("{", "").replace("}", "")
        parts = (authors(entry["author"]), f"*{title}*", where, entry["year"])
        papers_by_key[key] = ", ".join(filter(None, parts))
    return papers_by_key


def authors(field: str) -> str:
    names = [author.split(",")[0].strip() for author in field.split(" and ")]
    if names[-1] == "others":
        return f"{names[0]} et al."
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def families() -> dict[str, list[str]]:
    """Names of the methods of this package by family."""
    by_family: dict[str, list[str]] = {}
    for name in sorted(name for name in METHODS if METHODS.owner(name).startswith("vitreous.")):
        by_family.setdefault(METHODS[name].facts.family, []).append(name)
    between = sorted(set(by_family) - {*FIRST, *LAST})
    return {family: by_family[family] for family in (*FIRST, *between, *LAST) if family in by_family}


def facts(method: Method) -> str:
    properties = [
        f"needs {NEEDS[method.capability.__name__]}",
        "class-specific" if method.class_specific else "the same map for every class",
        "signed" if method.signed else "never negative",
        f"explains the {method.question}" if method.class_specific else "",
        f"one score per {method.facts.native}",
        "reads attention" if method.recipe.attention else "",
        "adds up to the score" if method.facts.complete and method.linearisation.complete else "",
        f"fold `{method.fold.name}`" + (", built in" if method.recipe.fixed_fold else "")
        if method.fold
        else "a whole function",
    ]
    return " · ".join(filter(None, properties))


def cost(name: str, costs: dict[str, list[float]]) -> str:
    """Cost as stated, if that is a formula, and as counted."""
    method, (forwards, backwards) = METHODS[name], costs[name]
    counted = f"{passes(forwards, 'forward')}, {passes(backwards, 'backward')}"
    if isinstance(method.facts.forwards, int) and isinstance(method.facts.backwards, int):
        return counted
    settings = ", ".join(f"{key}={value}" for key, value in FEWER.get(name, {}).items())
    stated = f"{method.facts.forwards} forwards, {method.facts.backwards} backwards"
    return f"{stated}; counted here{f' with {settings}' if settings else ''}: {counted}"


def passes(count: float, kind: str) -> str:
    return f"{count:g} {kind}{'' if count == 1 else 's'}"


def entry(name: str, costs: dict[str, list[float]], bibliography: dict[str, str], vit: Any) -> list[str]:
    method = METHODS[name]
    option_values = [(key, value) for key, value in method.known_options.items() if key != "preset"]
    options = options_text(method, option_values)
    presets = ", ".join(f"`preset={preset!r}` ({setting(method.presets[preset])})" for preset in method.presets)
    also = ", ".join(f"`{alias}`" for alias, spec in SPEC_ALIASES.items() if spec == name)
    mind = cautions(method, vit)
    lines = {
        "Facts": facts(method),
        "Cost": cost(name, costs),
        "Options": options,
        "Presets": presets,
        "Also called": also,
        "Paper": bibliography.get(method.facts.paper, method.facts.paper),
        "Caveat on this model": mind,
        "Patents": "see [a note on LRP](lrp-patent.md)" if name in ("transatt", "partiallrp", "lrp") else "",
    }
    fewer = ", ".join(f"{value} {key}" for key, value in FEWER.get(name, {}).items())
    image = f"![{name} on three scenes](images/methods/{name}.png)" + (f"<br>*{fewer} here*" if fewer else "")
    facts_list = [f"- **{label}**: {text}" for label, text in lines.items() if text]
    return [f"### {name}", "", method.facts.title, "", f"    {method.facts.formula}", "", *facts_list, "", image, ""]


def options_text(method: Method, option_values: list[tuple[str, Any]]) -> str:
    """Options of a method: those of every method or of its fold by name, the others with their meaning."""
    shared = {"question", "row", *(() if method.fold is None else method.fold.signature.options)}
    meanings = option_meanings(method)
    by_name = ", ".join(f"`{key}={value!r}`" for key, value in option_values if key in shared)
    own = "".join(f"\n    - `{key}={value!r}`: {meanings[key]}" for key, value in option_values if key not in shared)
    return f"{by_name} ([meaning](#shared-options)){own}" if by_name else own


def shared_options_text() -> list[str]:
    """A section about the options that many methods have."""
    described = {name: SHARED[name] for name in ("question", "row")}
    for fold in (rollout, skipplus, plus):
        texts = {name: text for name, text in parameters(fold.signature.call).items() if name in fold.typed_options}
        described |= {name: text for name, text in texts.items() if not text.startswith("As in `")}
    described["start"] = "First layer of the sum or roll-out; negative counts from the last layer, None is the middle."
    return ["## Shared options", "", *(f"- `{name}`: {text}" for name, text in described.items()), ""]


def setting(preset: Mapping[str, Any]) -> str:
    """Options of a preset, as in a spec."""
    settings = (
        f"+{v.name}{write_options(v.options)}" if isinstance(v, Fold) else f"{k}={v!r}" for k, v in preset.items()
    )
    return ", ".join(settings) or "the defaults"


def methods_page(costs: dict[str, list[float]], described_targets: str) -> str:
    """Page of all methods; `described_targets` describes the three images."""
    bibliography, vit = papers(), vitreous.load("scenes")
    page = [
        "# Methods",
        "",
        "*Written from the registry by `python docs/methods_page.py`.*",
        "",
        f"The {sum(map(len, families().values()))} methods of the package, each with its formula, its properties, its cost and its maps of the same",
        f"three images, explained with the embedded model `scenes`: {described_targets}. The known evidence is outlined in green. Red is evidence",
        "for the class and blue against it; maps without negative scores go from dark (least) to bright (most).",
        "",
        "![The three images](images/methods/images.png)",
        "",
        "**Notation.** " + NOTATION,
        "",
        "**Cost** is counted, per image of these three: passes through blocks, divided by the number of blocks, so that a backward",
        "pass that stops half-way counts one half. A pass over fewer tokens counts as one pass, and a pass that the three images share as a third.",
        "",
        "| family | methods |",
        "|---|---|",
    ]
    page += [
        f"| {family} | {' · '.join(f'[{name}](#{name})' for name in names)} |" for family, names in families().items()
    ]
    page += ["", *shared_options_text()]
    for family, names in families().items():
        page += ["", f"## {family}", ""]
        for name in names:
            page += entry(name, costs, bibliography, vit)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(page)).rstrip() + "\n"


def composes_page() -> str:
    table, titles = (
        list_combinations(),
        {"ixg": "CAT", "attixg": "AttCAT", "genatt": "GradSAM, as SkipPLUS defines it", "fullgrad": "FullGrad+"},
    )
    page = [
        "# What composes",
        "",
        "*Written from the registry by `python docs/methods_page.py`; a test runs every ✓ and = and checks that every – is refused.*",
        "",
        "PLUS adds up the maps of all layers, SkipPLUS those from the middle layer on. There are two definitions. **Layers**",
        '(`mode="layers"`, the default) adds the layers\' own maps. **Restart** (`mode="restart"`) runs the method on every network',
        "that begins at a later block and adds up their maps; a token-to-token method is rolled out from every start with its own",
        "step, and FullGrad counts a bias at every start that reaches it. For a method that scores tokens both are the same sum (=).",
        "",
        "| method | `+plus` layers | restart | `+skipplus` layers | restart | `+rollout` | `@libra` | `+plus` is known as |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in table.items():
        marks = [mark(row[ending], METHODS[name], ending) for ending in ENDINGS]
        page.append(f"| [{name}](methods.md#{name}) | {' | '.join(marks)} | {titles.get(name, '')} |")
    page += ["", "Other combinations are refused:", "", "| error message | methods |", "|---|---|"]
    for sentence, specs in refusals(table).items():
        page.append(f"| {sentence} | {', '.join(specs)} |")
    return "\n".join(page) + "\n"


def mark(cell: Combination, method: Method, ending: str) -> str:
    if cell.method is None:
        return "–"
    return "=" if "restart" in ending and not restart_differs(method) else "✓"


def refusals(table: dict[str, dict[str, Combination]]) -> dict[str, list[str]]:
    """Error messages without names, with the methods that raise each."""
    names_by_sentence: dict[str, list[str]] = {}
    for name, row in table.items():
        for cell in row.values():
            sentence = cell.refusal.replace(f"'{name}'", "…").replace(f"'{name}+", "'…+")
            if cell.method is None and name not in names_by_sentence.setdefault(sentence, []):
                names_by_sentence[sentence].append(name)
    return names_by_sentence
