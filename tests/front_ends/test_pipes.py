"""Pipes: a closed pipe ends a command without an error, and long commands print plain lines of progress to an open one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from io import StringIO
from pathlib import Path

import pytest
import typer

from vitreous.bench.run_plan import Progress
from vitreous.bench.signals import Stopped
from vitreous.cli import console
from vitreous.cli.main import main
from vitreous.cli.run_output import run_display
from vitreous.core.errors import ModelError


@pytest.mark.parametrize(
    "words",
    [["methods"], ["methods", "--json"], ["methods", "genatt"], ["metrics"], ["models"], ["--help"], ["--version"]],
    ids=" ".join,
)
def test_a_closed_pipe_ends_a_verb_quietly(words):
    reader, writer = os.pipe()
    os.close(reader)

    done = subprocess.run(
        [sys.executable, "-m", "vitreous", *words], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )

    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_closed_stderr_is_a_closed_pipe_too():
    reader, writer = os.pipe()
    os.close(reader)

    done = subprocess.run([sys.executable, "-m", "vitreous", "nonsense"], stderr=writer, check=False)

    os.close(writer)
    assert done.returncode == 141


@pytest.mark.parametrize(("word", "status"), [("methods", 0), ("nonsense", 2)])
def test_a_command_that_is_started_without_output_streams_keeps_its_status(word, status):
    script = 'exec "$0" -m vitreous "$1" >&- 2>&-'

    assert subprocess.run(["sh", "-c", script, sys.executable, word], check=False).returncode == status


def test_a_broken_pipe_elsewhere_is_a_fault(monkeypatch, capfd):
    from vitreous.cli import catalogue

    def broken(_):
        raise BrokenPipeError("of a worker")

    monkeypatch.setattr(catalogue, "models", lambda: broken(None))

    assert main(["models"]) == 70
    assert "unexpected BrokenPipeError: of a worker" in capfd.readouterr().err


# ── progress ─────────────────────────────────────────────────────────────────────────────────────


class Log(StringIO):
    """Lines of stderr; tests can wait for one."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = threading.Condition()

    def write(self, text: str) -> int:
        with self.changed:
            written = super().write(text)
            self.changed.notify_all()
        return written

    def wait_for(self, text: str) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: text in self.getvalue(), timeout=60), self.getvalue()


@pytest.fixture
def log(monkeypatch) -> Log:
    stream, echo = Log(), typer.echo

    def logged_echo(message: str = "", *, err: bool = False) -> None:
        echo(message, file=stream if err else None)

    monkeypatch.setattr(typer, "echo", logged_echo)
    monkeypatch.setattr(console, "INTERVAL", 0.01)
    return stream


def test_check_prints_plain_lines_of_progress_in_a_pipe(log, monkeypatch, capsys):
    import vitreous.front

    tried = []

    def explain(_vit, _image, method, **_):
        if not tried:
            log.wait_for(f"now {method.name} (")
        tried.append(method.name)
        raise ModelError("not tried")

    monkeypatch.setattr(vitreous.front, "explain", explain)

    assert main(["check", "--model", "scenes"]) == 0

    lines = log.getvalue().splitlines()
    assert any(line.startswith("methods: 0 of ") for line in lines)
    assert all(line.endswith(" so far)") and line.isprintable() for line in lines)
    assert "not tried" in capsys.readouterr().out


def test_a_run_prints_plain_lines_and_an_interruption_lists_finished_results(log):
    def interrupted_run() -> None:
        with run_display(Path("runs/x")) as display:
            log.wait_for("preparing (")
            display(Progress(cells=2, images=8, done_images=4, rows=12))
            log.wait_for("4 of 8 images, ")
            raise KeyboardInterrupt

    with pytest.raises(Stopped) as stopped:
        interrupted_run()

    assert stopped.value.kept == "4 of 8 images are done and kept in runs/x, 12 new rows"
    assert stopped.value.resumable
    assert all(line.endswith(" so far)") and line.isprintable() for line in log.getvalue().splitlines())


def test_short_work_prints_no_line(log, monkeypatch):
    monkeypatch.setattr(console, "INTERVAL", 3600.0)
    with console.progress_lines(lambda: "working"):
        pass

    assert log.getvalue() == ""
