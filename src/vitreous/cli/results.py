"""What `vitreous explain` keeps and says of one picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from vitreous.cli.files import Shelf, safe
from vitreous.cli.say import console, show, table
from vitreous.draw import figure, sheet
from vitreous.draw.captions import class_name, format_value, output_value, percent, probabilities, probability
from vitreous.methods.attribution import Attribution
from vitreous.models.vit import ViT

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Results:
    """Writes overlays, a sheet and raw maps of each picture."""

    shelf: Shelf
    mode: Any = "bilinear"
    shared_scale: bool = True

    def keep(self, picture: Path, found: Sequence[Attribution], vit: ViT) -> Record:
        """Write everything about one picture; returns what was found and where it is."""
        stem = self.shelf.claim(picture.stem)
        explained = [self.overlay(stem, one, row) for one in found for row in range(len(one))]
        with self.shelf.writing(f"{stem}.sheet.png") as file:
            options = {"mode": self.mode, "shared_scale": self.shared_scale}
            sheet(found, limit=max(12, len(found[0])), **options).savefig(file, format="png")
        return {
            "picture": str(picture),
            "top": top(found[0], vit),
            "explained": explained,
            "sheet": str(self.shelf.folder / f"{stem}.sheet.png"),
            "maps": {one.method: self.maps(stem, one) for one in found},
            "provenance": {one.method: dict(one.provenance) for one in found},
        }

    def overlay(self, stem: str, found: Attribution, row: int) -> Record:
        """One row over its picture, labelled."""
        one = found[row]
        name = f"{stem}.{class_part(found, row)}.{safe(one.method)}.png"
        with self.shelf.writing(name) as file:
            figure(found, rows=[row], mode=self.mode, shared_scale=self.shared_scale).savefig(file, format="png")
        return {
            "method": one.method,
            "class": class_name(one),
            "index": int(one.targets[0]),
            "probability": probability(one),
            **({} if output_value(one) is None else {"value": output_value(one)}),
            "score": None if one.score is None else float(one.score[0]),
            "residual": None if one.residual is None else float(one.residual[0]),
            "overlay": str(self.shelf.folder / name),
        }

    def maps(self, stem: str, found: Attribution) -> str:
        name = f"{stem}.{safe(found.method)}.safetensors"
        with self.shelf.writing(name) as file:
            found.save(file, format="safetensors")
        return str(self.shelf.folder / name)


def class_part(found: Attribution, row: int) -> str:
    """The class in a file's name; with its index where two classes have one name."""
    names = [safe(class_name(found[other])).casefold() for other in range(len(found))]
    own = safe(class_name(found[row]))
    return own if names.count(own.casefold()) == 1 else f"{own}-{int(found.targets[row])}"


def top(found: Attribution, vit: ViT, most: int = 5) -> list[Record]:
    """The classes that the model holds most likely, or its one output with the value."""
    chances = probabilities(found)
    if chances is None:
        return [{"class": vit.class_name(0), "index": 0, "probability": None, "value": output_value(found)}]
    best = chances.topk(min(most, len(chances)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [{"class": vit.class_name(index), "index": index, "probability": chance} for index, chance in pairs]


# ── saying ───────────────────────────────────────────────────────────────────────────────────────


def tell(record: Record) -> None:
    """The prediction as a table, and where the files are."""
    out = console()
    out.print(record["picture"], style="bold", soft_wrap=True)
    number = "value" if "value" in record["top"][0] else "probability"
    shown = table("", "output" if number == "value" else "class", "index", number, right=("index", number))
    explained = {one["index"]: one for one in record["explained"]}
    listed = [one["index"] for one in record["top"]]
    for one in [*record["top"], *(one for index, one in explained.items() if index not in listed)]:
        mark = "*" if one["index"] in explained else ""
        shown.add_row(mark, one["class"], str(one["index"]), quantity(one))
    show(shown)
    out.print("* explained", style="dim")
    for kind, files in (
        ("sheet", [record["sheet"]]),
        ("overlay", [one["overlay"] for one in record["explained"]]),
        ("maps", list(record["maps"].values())),
    ):
        for file in files:
            out.print(f"{kind:8}{file}", soft_wrap=True)
    out.print()


def tell_briefly(record: Record) -> None:
    best = ", ".join(f"{one['class']} {quantity(one)}" for one in record["top"][:3])
    console().print(f"{record['picture']}  {best}  → {record['sheet']}", soft_wrap=True)


def quantity(one: Record) -> str:
    """A class's probability, or an output's value."""
    return format_value(one["value"]) if "value" in one else percent(one["probability"])


def tell_failure(problem: Exception) -> None:
    typer.secho("failed: ", fg="red", err=True, nl=False)
    typer.echo(" ".join(str(problem).split()), err=True)
