"""Explain images for `vitreous explain`, write the files of each, and print the predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from vitreous import __version__, front
from vitreous.bench.model_options import load_model
from vitreous.bench.signals import Stopped
from vitreous.capture.precision import check_precision
from vitreous.capture.score_function import resolve_score_function
from vitreous.capture.targets import class_index
from vitreous.cli.console import ProgressBar, open_console, print_json, print_table
from vitreous.cli.files import OutputFolder, make_safe_name
from vitreous.core.errors import DataError, ModelError
from vitreous.draw import figure, sheet
from vitreous.draw.captions import class_name, format_value, output_value, percent, probabilities, probability
from vitreous.draw.overlay import Mode
from vitreous.methods.attribution import Attribution
from vitreous.methods.spec import resolve
from vitreous.models.image_input import open_image
from vitreous.models.model import BlackBox
from vitreous.models.outputs import count_with_noun

Record = dict[str, Any]
TABLES = 3  # up to this many images are printed as tables; more are printed as one line each


class Explainer:
    """A model with methods, targets and a score function; the constructor checks all of them.

    `loading` are arguments of `load_model`.
    """

    def __init__(
        self,
        model: str,
        methods: Sequence[str],
        targets: Sequence[str],
        question: str | None,
        precision: str | None,
        loading: dict[str, Any],
    ) -> None:
        # check methods and score function before loading the model; two names of the same method count once
        self.methods = list({method.spec: method for method in map(resolve, methods)}.values())
        self.question = None if question is None else resolve_score_function(question)
        check_precision(precision)
        self.model, self.precision = model, precision
        self.vit = load_model(model, **loading)
        if self.vit.preprocess is None:
            raise ModelError(
                f"{model!r} does not say how images are prepared (it takes {count_with_noun(self.vit.channels, 'channel')}); give --mean and --std"
            )
        self.targets = list(dict.fromkeys(class_index(self.vit, target) for target in targets))

    def __call__(self, image: Any, progress: ProgressBar[Path]) -> Iterator[Attribution]:
        """Yield one attribution per method."""
        target = [self.targets] if self.targets else None
        for method in self.methods:
            with progress.step(method.spec):
                attribution = front.explain(self.vit, image, target, method, self.question, precision=self.precision)
            yield attribution


def explain_images(sources: Sequence[Path], explainer: Explainer, results: Results, *, as_json: bool) -> int:
    """Explain all images; those that cannot be read are reported and skipped. Return the exit status."""
    print_result = print_record if len(sources) <= TABLES else print_line
    folder = results.output.folder
    records: list[Record] = []
    failed: list[Record] = []
    document = {"vitreous": __version__, "model": explainer.model, "images": records, "failed": failed}
    progress = ProgressBar(sources, "explaining")
    try:
        for source in progress:
            try:
                image = open_image(source)
            except DataError as problem:
                failed.append({"image": str(source), "reason": str(problem)})
                progress.hide()
                print_failure(problem)
                continue
            attributions, interruption = collect_until_interrupted(explainer(image, progress))
            if attributions:
                records.append(results.keep(source, attributions, explainer.vit))
            if attributions and not as_json:
                progress.hide()
                print_result(records[-1])
            if interruption is not None:
                raise interruption
    except KeyboardInterrupt as interruption:
        progress.hide()
        if as_json:
            print_json(document)
        outcome_note = f"what was finished is in {folder}" if records else "nothing was finished"
        raise Stopped.with_kept(interruption, outcome_note) from None
    if as_json:
        print_json(document)
    elif len(sources) > 1:
        failures = f", {len(failed)} failed" if failed else ""
        typer.echo(f"{len(records)} image{'' if len(records) == 1 else 's'} explained in {folder}{failures}")
    return 1 if failed else 0


def collect_until_interrupted(
    attributions: Iterator[Attribution],
) -> tuple[list[Attribution], KeyboardInterrupt | None]:
    """Collect all attributions, or those before an interruption; return them and the interruption, if any."""
    collected: list[Attribution] = []
    try:
        collected.extend(attributions)
    except KeyboardInterrupt as interruption:
        return collected, interruption
    return collected, None


# ── files ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Results:
    """Writer of overlays, a sheet and raw maps for each image."""

    output: OutputFolder
    mode: Mode = "bilinear"
    shared_scale: bool = True
    with_images: bool = False  # in the files of raw maps

    def keep(self, source: Path, attributions: Sequence[Attribution], model: BlackBox) -> Record:
        """Write all files of one image; return the prediction and the paths of the files."""
        stem = self.output.claim(source.stem)
        explained = [self.overlay(stem, group, row) for group in attributions for row in range(len(group))]
        with self.output.writing(f"{stem}.sheet.png") as file:
            options = {"mode": self.mode, "shared_scale": self.shared_scale}
            sheet(attributions, limit=max(12, len(attributions[0])), **options).savefig(file, format="png")
        return {
            "image": str(source),
            "top": list_top_classes(attributions[0], model),
            "explained": explained,
            "sheet": str(self.output.folder / f"{stem}.sheet.png"),
            "maps": {attribution.method: self.maps(stem, attribution) for attribution in attributions},
            "provenance": {attribution.method: dict(attribution.provenance) for attribution in attributions},
        }

    def overlay(self, stem: str, attributions: Attribution, row: int) -> Record:
        """Write a labelled overlay of one row."""
        attribution = attributions[row]
        name = f"{stem}.{name_class(attributions, row)}.{make_safe_name(attribution.method)}.png"
        with self.output.writing(name) as file:
            figure(attributions, rows=[row], mode=self.mode, shared_scale=self.shared_scale).savefig(file, format="png")
        value = output_value(attribution)
        return {
            "method": attribution.method,
            "class": class_name(attribution),
            "index": int(attribution.targets[0]),
            "probability": probability(attribution),
            **({} if value is None else {"value": value}),
            "score": None if attribution.score is None else float(attribution.score[0]),
            "residual": None if attribution.residual is None else float(attribution.residual[0]),
            "overlay": str(self.output.folder / name),
        }

    def maps(self, stem: str, attribution: Attribution) -> str:
        """Write the raw maps of one method."""
        name = f"{stem}.{make_safe_name(attribution.method)}.safetensors"
        with self.output.writing(name) as file:
            attribution.save(file, format="safetensors", images=self.with_images)
        return str(self.output.folder / name)


def name_class(attributions: Attribution, row: int) -> str:
    """Class name for a file name; with the class index if two classes have the same name."""
    names = [make_safe_name(class_name(attributions[index])).casefold() for index in range(len(attributions))]
    own = make_safe_name(class_name(attributions[row]))
    return own if names.count(own.casefold()) == 1 else f"{own}-{int(attributions.targets[row])}"


def list_top_classes(attributions: Attribution, model: BlackBox, most: int = 5) -> list[Record]:
    """Classes with the largest probabilities, or the value of a single output."""
    shares = probabilities(attributions)
    if shares is None:
        return [{"class": model.class_name(0), "index": 0, "probability": None, "value": output_value(attributions)}]
    best = shares.topk(min(most, len(shares)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [{"class": model.class_name(index), "index": index, "probability": value} for index, value in pairs]


# ── printing ─────────────────────────────────────────────────────────────────────────────────────


def print_record(record: Record) -> None:
    """Print the prediction as a table, and the paths of the files."""
    console = open_console()
    console.print(record["image"], style="bold", soft_wrap=True)
    kind, quantity = ("output", "value") if "value" in record["top"][0] else ("class", "probability")
    explained = {entry["index"]: entry for entry in record["explained"]}
    listed = {entry["index"]: entry for entry in record["top"]}
    rows = [
        ("*" if index in explained else "", entry["class"], str(index), format_quantity(entry))
        for index, entry in {**listed, **explained, **listed}.items()
    ]
    print_table(("", kind, "index", quantity), rows, right=("index", quantity))
    console.print("* explained", style="dim")
    for kind, files in (
        ("sheet", [record["sheet"]]),
        ("overlay", [entry["overlay"] for entry in record["explained"]]),
        ("maps", list(record["maps"].values())),
    ):
        for file in files:
            console.print(f"{kind:8}{file}", soft_wrap=True)
    console.print()


def print_line(record: Record) -> None:
    """Print the prediction and the path of the sheet in one line."""
    best = ", ".join(f"{entry['class']} {format_quantity(entry)}" for entry in record["top"][:3])
    open_console().print(f"{record['image']}  {best}  → {record['sheet']}", soft_wrap=True)


def format_quantity(entry: Record) -> str:
    """Probability of a class, or value of an output."""
    return format_value(entry["value"]) if "value" in entry else percent(entry["probability"])


def print_failure(problem: Exception) -> None:
    typer.secho("failed: ", fg="red", err=True, nl=False)
    typer.echo(" ".join(str(problem).split()), err=True)
