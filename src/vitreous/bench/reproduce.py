"""Plans of the papers' tables and figures, as shipped in `vitreous/reproductions/*.toml`.

A file describes one paper: its `data` (what to get and where it lies), `models`, `datasets` (which columns of the
protocol are measured on which images) and `plans`, one for every table or figure, with its models, datasets and rows.
"""

from __future__ import annotations

import re
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from vitreous.bench.plan import Plan
from vitreous.bench.plan_parser import make_plan
from vitreous.bench.plan_source import Origin, suggest
from vitreous.core.errors import Caveat, SpecError
from vitreous.data.reader import expand_path, split_spec
from vitreous.data.subset_list import read_entries
from vitreous.metrics.protocols import protocol
from vitreous.metrics.published import STAND_IN

FOLDER = files("vitreous") / "reproductions"
PLACEHOLDER = re.compile(r"\{([a-z0-9-]+)\}")


@dataclass(frozen=True, slots=True)
class Reproduction:
    """The plan of a published table or figure, without the paths of data and checkpoints.

    Parameters
    ----------
    name
        Paper and table, such as "tis:table1".
    title
        What the table or figure shows.
    protocol
        Name of the protocol that its columns and preprocessing come from.
    methods
        Specs of the rows.
    models
        Entries of the models by key; `needs` says what checkpoint is needed if there is none that can be downloaded.
    datasets
        Entries of the datasets, with the keys of data in braces in their specs.
    data
        What to get and its layout, by key of the data.
    seed
        Seed that selects images where a dataset has no other.
    shows_images
        Whether it is a figure of maps; other figures are radars and curves of numbers.
    notes
        What the paper does not say, and differences from it.
    assumes
        What is assumed for all plans of the paper: checkpoints, and how images are chosen.
    """

    name: str
    title: str
    protocol: str
    methods: tuple[str, ...]
    models: Mapping[str, Mapping[str, Any]]
    datasets: tuple[Mapping[str, Any], ...]
    data: Mapping[str, Mapping[str, Any]]
    seed: int = 0
    shows_images: bool = False
    notes: tuple[str, ...] = ()
    assumes: tuple[str, ...] = ()


@lru_cache(maxsize=1)
def list_reproductions() -> dict[str, Reproduction]:
    """All reproductions by name."""
    reproductions = {}
    for file in sorted(FOLDER.iterdir(), key=lambda file: file.name):
        if file.name.endswith(".toml"):
            paper = tomllib.loads(file.read_text(encoding="utf-8"))
            for key, entry in paper["plans"].items():
                name = f"{file.name.removesuffix('.toml')}:{key}"
                reproductions[name] = read_reproduction(name, entry, paper)
    return reproductions


def read_reproduction(name: str, entry: Mapping[str, Any], paper: Mapping[str, Any]) -> Reproduction:
    """Join the entry of a plan with the models, datasets and data of its paper that it names."""
    rows = protocol(paper["protocol"]).rows
    methods = [rows[row] for row in entry.get("rows", ())] + list(entry.get("methods", ()))
    methods += [spec.format(layer=layer) for spec in entry.get("sweep", ()) for layer in range(entry["layers"])]
    datasets = [paper["datasets"][key] for key in entry["datasets"]]
    used = {key for dataset in datasets for key in PLACEHOLDER.findall(dataset["spec"])}
    return Reproduction(
        name,
        entry["title"],
        paper["protocol"],
        tuple(dict.fromkeys(methods)),
        {key: paper["models"][key] for key in entry["models"]},
        tuple(datasets),
        {key: data for key, data in paper["data"].items() if key in used},
        paper.get("seed", 0),
        entry.get("shows_images", False),
        tuple(entry.get("notes", ())),
        tuple(paper.get("assumes", ())),
    )


def find_reproduction(name: str) -> Reproduction:
    """Reproduction by name, such as "tis:table1".

    Raises
    ------
    SpecError
        If there is no such reproduction.
    """
    reproductions = list_reproductions()
    if name not in reproductions:
        raise SpecError(f"no reproduction {name!r}; {suggest(name, list(reproductions))} (`vitreous reproduce --list`)")
    return reproductions[name]


def keep_models(selected: Reproduction, keys: Sequence[str]) -> Reproduction:
    """The reproduction with some of its models, and with the datasets and data that these need.

    Raises
    ------
    SpecError
        If the reproduction does not have a model.
    """
    check_keys(dict.fromkeys(keys), selected.models, "--models", selected.name)
    datasets = tuple(entry for entry in selected.datasets if set(keys) & set(entry.get("models", selected.models)))
    used = {key for entry in datasets for key in PLACEHOLDER.findall(entry["spec"])}
    return replace(
        selected,
        models={key: entry for key, entry in selected.models.items() if key in keys},
        datasets=datasets,
        data={key: entry for key, entry in selected.data.items() if key in used},
    )


def plan_reproduction(
    selected: Reproduction,
    data: Mapping[str, str],
    *,
    models: Mapping[str, Mapping[str, Any]] | None = None,
    checkpoints: Mapping[str, str] | None = None,
    images: int | None = None,
    subsets: Mapping[str, str] | None = None,
    **over: Any,
) -> Plan:
    """Make the plan of a reproduction.

    Parameters
    ----------
    selected
        The reproduction.
    data
        Path by key of the data, or a dataset spec that stands in for it.
    models
        Entries (`name`, builder arguments, …) of models that stand in for those of the paper, by key.
    checkpoints
        Local weights by key of the model.
    images
        Number of images per dataset; None for the paper's, or for all of a list.
    subsets
        File that lists the images to use, by key of the data.
    **over
        Other entries of a plan, such as `device`.

    Returns
    -------
    Plan
        `reduced` says how it differs from the published evaluation.

    Raises
    ------
    SpecError
        If data or checkpoints are missing; the message says what to get and how to give it.
    """
    models, checkpoints, subsets = models or {}, checkpoints or {}, subsets or {}
    data = drop_unused(data, selected)
    check_keys(data, selected.data, "--data", selected.name)
    check_keys(subsets, selected.data, "--subset", selected.name)
    check_keys({**models, **checkpoints}, selected.models, "--models and --checkpoint", selected.name)
    require(selected, data, models, checkpoints)
    whole = find_reproduction(selected.name)
    reduced = [f"without {entry['label']}" for key, entry in whole.models.items() if key not in selected.models]
    labels = {
        key: f"{models[key]['name']}{STAND_IN}{entry['label']}" if key in models else entry["label"]
        for key, entry in selected.models.items()
    }
    datasets = []
    for entry in selected.datasets:
        spec, stands_in = fill_spec(entry["spec"], data)
        own_labels = [labels[key] for key in entry.get("models", selected.models) if key in selected.models]
        if stands_in:
            reduced.append(f"{entry['label']} is {spec}")
        listed = next((subsets[key] for key in PLACEHOLDER.findall(entry["spec"]) if key in subsets), None)
        chosen_images, difference = choose_images(entry, images, listed)
        reduced += difference
        label = f"{spec}{STAND_IN}{entry['label']}" if stands_in else entry["label"]
        datasets.append({**entry, "label": label, "spec": spec, "models": own_labels, **chosen_images})
    chosen = []
    for key, entry in selected.models.items():
        model_entry = {name: value for name, value in entry.items() if name != "needs"}
        if key in models:
            model_entry = {"label": labels[key], "family": model_entry.get("family", ""), **models[key]}
            reduced.append(f"{entry['label']} is {model_entry['name']}")
        chosen.append({**model_entry, **({"checkpoint": checkpoints[key]} if key in checkpoints else {})})
    entries = {
        "models": chosen, "datasets": datasets, "methods": list(selected.methods), "protocol": selected.protocol,
        "seed": selected.seed, "maps": selected.shows_images, "reproduces": selected.name, "reduced": "; ".join(reduced),
        **{key: value for key, value in over.items() if value is not None},
    }  # fmt: skip
    return make_plan(entries, Origin(flags={"images": "--images"}), "")


def choose_images(entry: Mapping[str, Any], images: int | None, listed: str | None) -> tuple[dict[str, Any], list[str]]:
    """Which images of a dataset are used.

    Parameters
    ----------
    entry
        The dataset as the plan has it.
    images
        Number of images; None for all of a list, or without a list for the paper's number.
    listed
        File that lists images, or None.

    Returns
    -------
    tuple
        Entries `images` and `subset` of the dataset, and how their number differs from the paper's.
    """
    whole = entry.get("images", "all")
    count = len(read_entries(listed)) if images is None and listed is not None else images
    entries: dict[str, Any] = {} if count is None else {"images": count}
    entries |= {} if listed is None else {"subset": listed}
    if count is None or count == whole:
        return entries, []
    return entries, [f"{count} image{'' if count == 1 else 's'} of {entry['label']} instead of {whole}"]


def drop_unused(data: Mapping[str, str], selected: Reproduction) -> dict[str, str]:
    """Paths without those of data that other plans of the paper use, which are named in a warning.

    One command line can so serve all plans of a paper.
    """
    paper = selected.name.partition(":")[0]
    of_paper = {
        key for name, entry in list_reproductions().items() if name.startswith(f"{paper}:") for key in entry.data
    }
    unused = [key for key in data if key in of_paper and key not in selected.data]
    if unused:
        warnings.warn(f"{selected.name} does not use {', '.join(unused)}", Caveat, stacklevel=3)
    return {key: path for key, path in data.items() if key not in unused}


def check_keys(keys: Mapping[str, Any], allowed: Mapping[str, Any], flag: str, name: str) -> None:
    """Raise `SpecError` if a key is given that the reproduction does not have."""
    for key in keys:
        if key not in allowed:
            raise SpecError(f"{flag}: {name} has no {key!r}; {suggest(key, list(allowed))}")


def require(
    selected: Reproduction, data: Mapping[str, str], models: Mapping[str, Any], checkpoints: Mapping[str, str]
) -> None:
    """Raise `SpecError` that says what to get and how to give it if data or checkpoints are missing.

    A path that does not exist counts as missing.
    """
    missing = [
        f"{entry['what']}, given as --data {key}=PATH, where PATH is {entry['layout']}"
        for key, entry in selected.data.items()
        if key not in data and not entry.get("optional")
    ]
    missing += [
        f"{entry['needs']}, given as --checkpoint {key}=FILE"
        for key, entry in selected.models.items()
        if "needs" in entry and key not in models and key not in checkpoints
    ]
    if missing:
        raise SpecError(f"{selected.name} needs {'; and '.join(missing)}")
    for key, spec in data.items():
        kind, place, _ = split_spec(spec)
        if not kind and not Path(place).expanduser().exists():
            entry = selected.data[key]
            raise SpecError(f"--data {key}: '{place}' does not exist; it is to be {entry['layout']}: {entry['what']}")
    for key, file in checkpoints.items():
        if not expand_path(file).exists():
            needed = selected.models[key].get("needs") or f"weights of {selected.models[key]['name']}"
            raise SpecError(f"--checkpoint {key}: '{file}' does not exist; it is to be {needed}")


def fill_spec(template: str, data: Mapping[str, str]) -> tuple[str, bool]:
    """Put paths into the template of a dataset spec.

    Options whose data are not given are left out. If a dataset spec is given in place of a path, it is used instead of
    the template, and the second value is True.
    """
    first = PLACEHOLDER.findall(template)[0]
    kind, _, _ = split_spec(data[first])
    if kind and kind != "assets":
        return data[first], True
    base, mark, query = template.partition("?")
    options = [option for option in query.split("&") if all(key in data for key in PLACEHOLDER.findall(option))]
    filled = base + (mark + "&".join(options) if any(options) else "")
    return PLACEHOLDER.sub(lambda match: data[match[1]], filled), False


def parse_pairs(flags: Sequence[str], flag: str, form: str) -> dict[str, str]:
    """Parse flags of the form key=value.

    Raises
    ------
    SpecError
        If one has another form or a key occurs twice.
    """
    pairs: dict[str, str] = {}
    for text in flags:
        key, equals, value = text.partition("=")
        if not (equals and key and value):
            raise SpecError(f"{flag}: {text!r} is not understood; write {form}")
        if key in pairs:
            raise SpecError(f"{flag}: {key!r} is given twice; once is enough")
        pairs[key] = value
    return pairs


def parse_model(text: str) -> dict[str, Any]:
    """Entry of a model from NAME or NAME?argument=value&…, as in the spec of a dataset."""
    from vitreous.data.reader import parse_value

    kind, name, arguments = split_spec(text)
    options = {key: parse_value(value) for key, value in arguments.items()}
    return {"name": f"{kind}:{name}" if kind else name, **options}
