"""`vitreous VERB …`. Here typer alone is imported; a verb's file is, when it is chosen, and torch when it works.

Exit codes: 0 done; 1 some pictures failed, the rest is done; 2 the request cannot be met, one sentence says why;
70 a fault of the program; 130 interrupted.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from vitreous.core.errors import VitreousError

# each is the function of that name in the file of that name
VERBS = ("explain", "methods", "metrics", "models", "check", "bench", "map", "report", "compare", "serve", "demo")
USAGE: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
SETTINGS = {"help_option_names": ["-h", "--help"]}


class Verbs(TyperGroup):
    """Commands that are imported when they are looked at."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in VERBS:
            return None
        verb = typer.Typer(add_completion=False, context_settings=SETTINGS)
        verb.command(cmd_name)(getattr(import_module(f"vitreous.cli.{cmd_name}"), cmd_name))
        return typer.main.get_command(verb)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in VERBS and not args[0].startswith("-"):
            near = get_close_matches(args[0], VERBS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(VERBS)}"
            ctx.fail(f"no command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)


app = typer.Typer(cls=Verbs, context_settings=SETTINGS, rich_markup_mode="rich")


def show_version(wanted: bool) -> bool:
    if wanted:
        from vitreous import __version__

        typer.echo(f"vitreous {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def vitreous(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Vision Transformers, see-through: which patches made the prediction."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code; errors become one sentence."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without × should not end the work
    try:
        given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
        code = typer.main.get_command(app).main(args=given, prog_name="vitreous", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except (typer.Abort, KeyboardInterrupt):
        typer.echo("interrupted; what was finished stays", err=True)
        return 130
    except USAGE as problem:
        return complain(problem.format_message(), 2)
    except VitreousError as problem:
        return complain(str(problem), 2)
    except Exception as problem:  # noqa: BLE001 - whatever it is, the user gets one sentence
        said = str(problem).strip().splitlines()
        what = f"{type(problem).__name__}: {said[0]}" if said else type(problem).__name__
        return complain(f"unexpected {what}; run with VITREOUS_DEBUG=1 for the traceback", 70)


def complain(sentence: str, code: int) -> int:
    """One line on stderr, under the traceback for those who asked for it."""
    if os.environ.get("VITREOUS_DEBUG"):
        traceback.print_exc()
    typer.secho("error: ", fg="red", bold=True, err=True, nl=False)
    typer.echo(" ".join(sentence.split()), err=True)
    return code
