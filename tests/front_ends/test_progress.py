"""Long computations: a progress bar in a terminal, none in a pipe, and Ctrl-C keeps finished results."""

from __future__ import annotations

import json
import signal
from io import StringIO

import pytest
from rich.console import Console

from tests.front_ends.test_cli import TINY, picture
from vitreous.cli import console
from vitreous.cli.main import main
from vitreous.core.progress import Tally

SLOW = ["--method", "decompx", "--method", "rise(masks=64)"]


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(console, "PATIENCE", -1.0)


@pytest.fixture
def terminal(monkeypatch):
    """Captured stderr that is a terminal."""
    screen, own = StringIO(), console.open_console

    def open_console(*, stderr: bool = False) -> Console:
        recorded = Console(file=screen, force_terminal=True, width=100, highlight=False, color_system=None)
        return recorded if stderr else own()

    monkeypatch.setattr(console, "open_console", open_console)
    return screen


@pytest.fixture
def sigint_handler():
    """Set the handler of SIGINT for one test; the suite may have been started with SIGINT ignored (nohup, cron)."""
    before = signal.getsignal(signal.SIGINT)
    yield lambda handler: signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)


@pytest.fixture
def pressed(monkeypatch, sigint_handler):
    """Ctrl-C during the first long method."""
    sigint_handler(signal.default_int_handler)
    add = Tally.add

    def once(self, count):
        add(self, count)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Tally, "add", once)


def explain(tmp_path, *more, names=("x.png",)):
    files = [picture(tmp_path / name) for name in names]
    return main(["explain", *files, *TINY, *SLOW, *more, "--target", "1", "--out", str(tmp_path / "o")])


@pytest.mark.slow
def test_a_long_method_shows_a_bar_on_a_terminal(tmp_path, impatient, terminal):
    assert explain(tmp_path) == 0

    shown = terminal.getvalue()
    assert "rise(masks=64)" in shown
    assert "/64" in shown
    assert "explaining" not in shown  # with one image there is no count of images


@pytest.mark.slow
def test_progress_over_several_images_names_each(tmp_path, impatient, terminal):
    assert explain(tmp_path, names=("x.png", "y.png")) == 0

    assert "explaining" in terminal.getvalue()
    assert "/2" in terminal.getvalue()


@pytest.mark.slow
def test_short_work_shows_no_bar(tmp_path, terminal, monkeypatch):
    monkeypatch.setattr(console, "PATIENCE", 3600.0)

    assert explain(tmp_path) == 0
    assert "rise" not in terminal.getvalue()


@pytest.mark.slow
def test_no_progress_is_printed_to_a_pipe(tmp_path, impatient, capsys):
    assert explain(tmp_path) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_an_interruption_keeps_finished_results(tmp_path, impatient, terminal, pressed, capsys):
    assert explain(tmp_path, names=("x.png", "y.png")) == 130

    kept = sorted(path.name for path in (tmp_path / "o").iterdir())
    assert kept == ["x.class-1.decompx.png", "x.decompx.safetensors", "x.sheet.png"]
    assert capsys.readouterr().err == f"interrupted; what was finished is in {tmp_path / 'o'}\n"
    assert terminal.getvalue().count("\x1b[?25l") == terminal.getvalue().count("\x1b[?25h")  # the cursor is back


@pytest.mark.slow
def test_an_interrupted_document_has_finished_results(tmp_path, pressed, capsys):
    assert explain(tmp_path, "--json", names=("x.png", "y.png")) == 130

    told = json.loads(capsys.readouterr().out)
    assert [list(one["maps"]) for one in told["images"]] == [["decompx"]]


def test_an_early_interruption_reports_that_nothing_was_finished(tmp_path, pressed, capsys):
    file = picture(tmp_path / "x.png")

    assert main(["explain", file, *TINY, "--method", "rise(masks=64)", "--out", str(tmp_path / "o")]) == 130
    assert capsys.readouterr().err == "interrupted; nothing was finished\n"
    assert not list((tmp_path / "o").iterdir())


@pytest.mark.slow
def test_a_run_that_ignores_interruptions_continues(tmp_path, pressed, sigint_handler):
    """`nohup vitreous … &`: a Ctrl-C in the terminal is meant for the program in the foreground."""
    sigint_handler(signal.SIG_IGN)

    assert explain(tmp_path) == 0
    assert len(list((tmp_path / "o").glob("*.safetensors"))) == 2
