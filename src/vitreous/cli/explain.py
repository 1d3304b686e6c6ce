"""`vitreous explain`: pictures in, overlays, sheets and raw maps out."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from vitreous.core.errors import DataError, SpecError

DEFAULT = "temper"
TABLES = 3  # pictures that get a table each; of more, each gets a line


def explain(
    pictures: Annotated[list[str], typer.Argument(metavar="PICTURE", help="Files, folders or patterns.")],
    model: Annotated[str, typer.Option("--model", "-m", metavar="NAME", help="Such as timm:vit_base_patch16_224.")],
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Local weights: safetensors, or a torch file.")
    ] = None,
    pretrained: Annotated[bool, typer.Option(help="Fetch weights when there is no checkpoint.")] = True,
    method: Annotated[
        list[str] | None,
        typer.Option("--method", "-x", metavar="SPEC", help="Repeat for several.", show_default=DEFAULT),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            "-t",
            metavar="CLASS",
            help="Index or name; repeat for several.",
            show_default="the predicted class",
        ),
    ] = None,
    question: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="logit, probability, log-probability, margin or sigmoid.",
            show_default="the method's own",
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(metavar="NAME", help="Such as cpu, cuda or mps.")] = None,
    model_arg: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="For the model's builder; repeat for several.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where results go.")] = Path(
        "vitreous-out"
    ),
    mode: Annotated[str, typer.Option(metavar="NAME", help="nearest, bilinear or bicubic.")] = "bilinear",
    shared_scale: Annotated[
        bool,
        typer.Option(
            "--shared-scale/--own-scale", help="One colour scale for all classes of an image, or one per map."
        ),
    ] = True,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
) -> int:
    """Show which patches made the model say so: an overlay per method and class, a sheet, and the raw maps."""
    from vitreous.cli.files import Shelf, gather
    from vitreous.cli.say import notes

    if mode not in ("nearest", "bilinear", "bicubic"):
        raise SpecError(f"mode {mode!r} is not known; known: nearest, bilinear, bicubic")
    sources, shelf = gather(pictures), Shelf(out)
    built = {"checkpoint": checkpoint, "pretrained": pretrained, "device": device, **builder_arguments(model_arg or [])}
    asked = Asked(model, method or [DEFAULT], target or [], question, built)
    with notes():
        return work(sources, asked, shelf, {"mode": mode, "shared_scale": shared_scale}, as_json=json)


def builder_arguments(given: Sequence[str]) -> dict[str, Any]:
    """`img_size=64` as a number, `global_pool=avg` as a word."""
    found: dict[str, Any] = {}
    for one in given:
        key, equals, value = one.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key.isidentifier():
            raise SpecError(f"--model-arg {one!r} is not understood; write KEY=VALUE, for example img_size=384")
        if key in ("name", "checkpoint", "pretrained", "device"):
            raise SpecError(f"--model-arg {key}=… has an option of its own; see `vitreous explain --help`")
        try:
            found[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[key] = value
    return found


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be explained, as it was written."""

    model: str
    methods: Sequence[str] = (DEFAULT,)
    targets: Sequence[str] = ()
    question: str | None = None
    built: dict[str, Any] = field(default_factory=dict)


class Explainer:
    """A model with methods, targets and a question, all found to make sense."""

    def __init__(self, asked: Asked) -> None:
        from vitreous.capture.question import ask
        from vitreous.front import class_index, load
        from vitreous.methods.spec import resolve

        # what is wrong is said before the model is fetched; the same method under two names is one
        self.methods = list({made.spec: made for made in map(resolve, asked.methods)}.values())
        self.question = None if asked.question is None else ask(asked.question)
        self.vit = load(asked.model, **asked.built)
        self.targets = list(dict.fromkeys(class_index(self.vit, target) for target in asked.targets))

    def __call__(self, picture: Any, watch: Any) -> Iterator[Any]:
        """One attribution per method, each as it is found."""
        from vitreous.front import explain

        target = [self.targets] if self.targets else None
        for method in self.methods:
            with watch.step(method.spec):
                found = explain(self.vit, picture, target, method, self.question)
            yield found


def work(sources: Sequence[Path], asked: Asked, shelf: Any, look: dict[str, Any], *, as_json: bool) -> int:
    """Explain every picture; one that cannot be read is reported, and the rest goes on."""
    from vitreous.cli.say import Watch, busy, document

    with busy(f"loading {asked.model}"):
        from vitreous.cli.results import Results, tell, tell_briefly, tell_failure
        from vitreous.models.picture import open_picture

        explainer, results = Explainer(asked), Results(shelf, **look)
    say = tell if len(sources) <= TABLES else tell_briefly
    records: list[Any] = []
    failed: list[Any] = []
    watch = Watch(sources, "explaining")
    try:
        for source in watch:
            try:
                picture = open_picture(source)
            except DataError as problem:
                failed.append({"picture": str(source), "reason": str(problem)})
                watch.hide()
                tell_failure(problem)
                continue
            found, stopped = until_interrupted(explainer(picture, watch))
            records += [results.keep(source, found, explainer.vit)] if found else []
            if found and not as_json:
                watch.hide()
                say(records[-1])
            if stopped:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        watch.hide()
        typer.echo(
            f"interrupted; {f'what was finished is in {shelf.folder}' if records else 'nothing was finished'}", err=True
        )
        if as_json:
            document(report(asked, records, failed))
        raise
    if as_json:
        document(report(asked, records, failed))
    elif len(sources) > 1:
        summarise(len(records), len(failed), shelf.folder)
    return 1 if failed else 0


def until_interrupted(items: Iterator[Any]) -> tuple[list[Any], bool]:
    """All of them, or those before Ctrl-C; and whether it was that."""
    found: list[Any] = []
    try:
        found.extend(items)
    except KeyboardInterrupt:
        return found, True
    return found, False


def report(asked: Asked, records: list[Any], failed: list[Any]) -> dict[str, Any]:
    from vitreous import __version__

    return {"vitreous": __version__, "model": asked.model, "pictures": records, "failed": failed}


def summarise(done: int, failed: int, folder: Path) -> None:
    lost = f", {failed} failed" if failed else ""
    typer.echo(f"{done} picture{'' if done == 1 else 's'} explained in {folder}{lost}")
