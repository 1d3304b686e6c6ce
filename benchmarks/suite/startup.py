"""Time of imports and of `vitreous --help`: process time of a new interpreter."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial

from suite.row import Figure, Row

IMPORTS = {  # statement after `import torch` → target in seconds
    "import vitreous": 0.1,
    "import vitreous; vitreous.explain": None,  # the first use: models, methods, timm
}
HELP = "import sys; sys.argv = ['vitreous', '--help']; from vitreous.cli.main import main; main()"


def measure_process_time(line: str, behind: str = "pass") -> float:
    """Process seconds of a statement in a new interpreter after `behind`; by default including the start of the interpreter."""
    start = "time.process_time()" if behind != "pass" else "0.0"
    script = f"""
import time
{behind}
start = {start}
try:
    exec({line!r})
except SystemExit as end:
    assert not end.code
import sys
sys.stderr.write(f"\\n{{time.process_time() - start}}")
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return float(done.stderr.splitlines()[-1])


def cases(rounds: int = 5) -> Iterator[Figure]:
    for line, most in IMPORTS.items():
        yield make_figure(
            line, "behind `import torch`", partial(measure_process_time, line, "import torch"), rounds, most
        )
    yield make_figure(
        "vitreous --help", "from the first instruction on", partial(measure_process_time, HELP), rounds, 0.3
    )


def make_figure(what: str, against: str, work: Callable[[], float], rounds: int, most: float | None) -> Figure:
    return Figure("start-up", what, against, lambda: measure_startup(what, against, work, rounds, most))


def measure_startup(what: str, against: str, work: Callable[[], float], rounds: int, most: float | None) -> Row:
    row = Row("", "start-up", what, against, unit="s", targets={} if most is None else {"at_most": most})
    work()  # files are read, bytecode is written
    waits = [work() for _ in range(rounds)]
    row.seconds, row.ratio, row.spread = {"ours": waits}, statistics.median(waits), (min(waits), max(waits))
    return row
