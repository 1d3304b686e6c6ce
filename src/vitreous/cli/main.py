"""Entry point `vitreous VERB …`.

Only typer is imported here; the module of a verb is imported when the verb is chosen, and torch when it runs.

Exit statuses: 0 success; 1 some images failed or a check did not hold, everything else is done; 2 the request cannot be
met, one sentence says why; 70 internal error; 129, 130 and 143 stopped by SIGHUP, SIGINT and SIGTERM; 141 the reader of
the output has closed the pipe.
"""

from __future__ import annotations

import errno
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from vitreous.bench.signals import Stopped
from vitreous.cli.options import takes_plugins
from vitreous.core.errors import VitreousError
from vitreous.core.progress import reporting

# verbs by name, with the module that has the function of that name
VERBS = {
    "explain": "explain", "methods": "catalogue", "metrics": "catalogue", "models": "catalogue", "check": "check",
    "bench": "bench", "reproduce": "reproduce", "map": "map", "report": "pages", "compare": "pages", "serve": "serve",
    "demo": "pages",
}  # fmt: skip
USAGE: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
SETTINGS = {"help_option_names": ["-h", "--help"]}
COMPLETION = "_VITREOUS_COMPLETE"
CLOSED_PIPE = 128 + 13  # SIGPIPE, which Python ignores


class Verbs(TyperGroup):
    """Commands whose modules are imported on demand."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in VERBS:
            return None
        verb = typer.Typer(add_completion=False, context_settings=SETTINGS)
        verb.command(cmd_name)(takes_plugins(getattr(import_module(f"vitreous.cli.{VERBS[cmd_name]}"), cmd_name)))
        return typer.main.get_command(verb)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in VERBS and not args[0].startswith("-"):
            near = get_close_matches(args[0], VERBS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(VERBS)}"
            ctx.fail(f"no command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)


app = typer.Typer(cls=Verbs, context_settings=SETTINGS, rich_markup_mode="rich")


def show_version(value: bool) -> bool:
    if value:
        from vitreous import __version__

        typer.echo(f"vitreous {__version__}")
        raise typer.Exit
    return value


@app.callback()
def vitreous(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Attribution maps of vision models: which patches led to a prediction, and how faithful the maps are."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status; errors are printed as one sentence on stderr.

    Parameters
    ----------
    arguments
        Arguments after `vitreous`; None for those of the process.

    Returns
    -------
    int
        Exit status, see the docstring of this module.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed before the start, as services do
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - open until the process ends
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # characters that the terminal cannot show must not raise an error
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    try:
        status = run(words, find_program_name() if arguments is None else ["vitreous"])
        sys.stdout.flush()  # flush now, since a closed pipe cannot be handled at exit
        sys.stderr.flush()
        return status
    except BrokenPipeError:
        discard_output()
        return CLOSED_PIPE


def run(words: list[str], program: list[str]) -> int:
    """Run a command line; the only error it raises is a closed pipe of the standard streams.

    The command is invoked without its `main`, which would handle interruptions and closed pipes itself.
    """
    command = typer.main.get_command(app)
    try:
        if os.environ.get(COMPLETION):  # a shell asks for completions
            command.main(args=words, prog_name="vitreous")
        # verbs show their own progress
        with command.make_context("vitreous", words) as context, reporting(lambda done, total: None):
            status = command.invoke(context)
        return status if isinstance(status, int) else 0
    except typer.Exit as problem:
        return problem.exit_code
    except KeyboardInterrupt as problem:
        return report_stop(problem, shlex.join([*program, *words]))
    except SystemExit as problem:
        if isinstance(problem.__context__, BrokenPipeError):  # rich exits when a pipe is closed
            raise BrokenPipeError from None
        return problem.code if isinstance(problem.code, int) else 1
    except BrokenPipeError as problem:
        if any(map(is_closed, (sys.stdout, sys.stderr))):
            raise
        return print_unexpected(problem)
    except USAGE as problem:
        return print_error(problem.format_message(), 2)
    except VitreousError as problem:
        return print_error(str(problem), 2)
    except Exception as problem:  # noqa: BLE001 - every error is printed as one sentence
        sentence = describe_impossible_argument(problem)
        return print_unexpected(problem) if sentence is None else print_error(sentence, 2)


def describe_impossible_argument(problem: Exception) -> str | None:
    """Sentence on an argument or entry that the system or Python refuses wherever it is used; None for other problems."""
    if isinstance(problem, OSError) and problem.errno == errno.ENAMETOOLONG:
        return "an argument or entry cannot be a file: its name is too long"
    if isinstance(problem, ValueError) and str(problem).startswith("embedded null "):
        return "an argument or entry cannot be a file: its name contains a null character"
    if isinstance(problem, ValueError) and str(problem).startswith("Exceeds the limit ("):
        return "an argument or entry is a number with thousands of digits; none is as large"
    if isinstance(problem, RuntimeError) and str(problem).startswith("Could not determine home directory"):
        return "a path begins with '~' and a user that is not known; write the path of the folder"
    return None


def report_stop(cause: BaseException, command: str) -> int:
    """Print what an interrupted command has kept and how to continue; return the exit status."""
    stopped = cause if isinstance(cause, Stopped) else Stopped()
    typer.echo(f"interrupted; {stopped.kept or 'what was finished stays'}", err=True)
    if stopped.resumable:
        typer.echo(f"to go on: {command}", err=True)
    return stopped.exit_status


def find_program_name() -> list[str]:
    """The words with which this program can be started again."""
    if Path(sys.argv[0]).name == "__main__.py":
        return [sys.executable, "-m", "vitreous"]
    return ["vitreous"]


def is_closed(stream: Any) -> bool:
    """Whether the reader of a pipe has closed it."""
    import select

    if not hasattr(select, "poll"):
        return True
    try:
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLOUT)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    except (OSError, ValueError):
        return False


def discard_output() -> None:
    """Redirect closed standard streams to the null device, so that the interpreter can flush them at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None and is_closed(stream):
            os.dup2(null, stream.fileno())
    os.close(null)


def print_unexpected(problem: BaseException) -> int:
    lines = str(problem).strip().splitlines()
    summary = f"{type(problem).__name__}: {lines[0]}" if lines else type(problem).__name__
    return print_error(f"unexpected {summary}; run with VITREOUS_DEBUG=1 for the traceback", 70)


def print_error(sentence: str, status: int) -> int:
    """Print one line on stderr, below the traceback when debugging."""
    if os.environ.get("VITREOUS_DEBUG"):
        traceback.print_exc()
    typer.secho("error: ", fg="red", bold=True, err=True, nl=False)
    typer.echo(" ".join(sentence.split()), err=True)
    return status
