"""The house stands: a floor reads its own and lower floors only, and every line of code knows its room.

Rules that a name on a list may break are broken for the reason that stands beside it.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "vitreous"

FLOORS = (
    {"core"},
    {"scenes"},  # pictures with known evidence and the embedded model that reads them: nothing of ours beneath
    {"models"},
    {"data"},  # pictures with labels, masks and boxes, brought into the frame a model sees
    {"capture"},
    {"methods"},
    {"metrics"},
    {"explanation", "front", "measure", "catalogue", "testing"},
    {"bench"},  # plans, cells, executors and the store: it measures through the front door
    {"draw", "report"},
    {"cli", "web", "demo", "__main__"},
)
LEVEL = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}

UPSTAIRS = {
    ("methods/attribution.py", "draw"): "`.plot()` and `_repr_html_` fetch the painter when somebody looks",
    ("methods/inside.py", "draw"): "`.plot()` fetches the painter when somebody looks",
}

WORDS = {"detach", "detach_", "requires_grad", "requires_grad_"}  # and autograd.grad
HOLDS = {
    "models/load.py": "models that we build ourselves ask for no gradients",
    "testing/law.py": "the law checks that `requires_grad` is left as it was",
    "testing/models.py": "the contract tests compare gradients of the parts with those of the model",
}

FAMILIES = {"timm", "transformers", "torchvision"}
KNOWS = {"scenes/model.py": "builds the embedded model, which is one of timm's"}


class Import(NamedTuple):
    file: str
    line: int
    module: str


def files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def name(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def imports_of(text: str, file: str) -> Iterator[Import]:
    """Every import that runs, also inside functions; those for type checkers alone do not run."""
    tree = ast.parse(text)
    unseen = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for part in node.body
        for inner in ast.walk(part)
    }
    for node in ast.walk(tree):
        if id(node) in unseen:
            continue
        if isinstance(node, ast.Import):
            yield from (Import(file, node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno} imports by dots; write the whole name"
            if node.module == "vitreous":  # `from vitreous import draw`
                yield from (Import(file, node.lineno, f"vitreous.{alias.name}") for alias in node.names)
            else:
                yield Import(file, node.lineno, node.module or "")


def room_of(module: str) -> str | None:
    """The room that a module of ours lies in, none for others' modules; through the lazy front door one gets anywhere."""
    parts = module.split(".")
    if parts[0] != "vitreous" or parts[1:] == ["__version__"]:
        return None
    return parts[1] if len(parts) > 1 and parts[1] in LEVEL else "front"


def trespasses(text: str, file: str) -> list[str]:
    own = file.removesuffix(".py").split("/")[0]
    if own == "__init__":  # the front door names every floor, and enters one when it is asked to
        return []
    found = []
    for one in imports_of(text, file):
        room = room_of(one.module)
        if room is not None and LEVEL[room] > LEVEL[own] and (file, room) not in UPSTAIRS:
            found.append(f"{file}:{one.line} ({own}) reads {one.module}, which is upstairs")
    return found


def names_in(text: str) -> Iterator[tuple[int, str]]:
    """Names as code has them: no comment, no docstring. `autograd.grad` counts as one name."""
    spoken = [t for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type in (tokenize.NAME, tokenize.OP)]
    for before, dot, token in zip([None, None, *spoken], [None, *spoken], spoken, strict=False):
        dotted = before is not None and dot is not None and dot.string == "." and before.string == "autograd"
        yield token.start[0], f"autograd.{token.string}" if dotted else token.string


def test_every_room_has_its_floor() -> None:
    rooms = {name(path).removesuffix(".py").split("/")[0] for path in files()} - {"__init__"}

    assert rooms - LEVEL.keys() == set()


def test_a_floor_reads_its_own_and_lower_floors_only() -> None:
    assert [violation for path in files() for violation in trespasses(path.read_text(), name(path))] == []


def test_only_capture_speaks_of_gradients() -> None:
    violations = [
        f"{name(path)}:{line} says {word}"
        for path in files()
        if not name(path).startswith("capture/") and name(path) not in HOLDS
        for line, word in names_in(path.read_text())
        if word in WORDS | {"autograd.grad"}
    ]

    assert violations == []


def test_only_models_know_whose_models_they_are() -> None:
    violations = [
        f"{one.file}:{one.line} imports {one.module}"
        for path in files()
        if not name(path).startswith("models/") and name(path) not in KNOWS
        for one in imports_of(path.read_text(), name(path))
        if one.module.split(".")[0] in FAMILIES
    ]

    assert violations == []


def test_core_imports_no_torch() -> None:
    heavy = [
        one
        for path in files()
        if name(path).startswith("core/")
        for one in imports_of(path.read_text(), name(path))
        if one.module.split(".")[0] in {"torch", "numpy", "jaxtyping", *FAMILIES}
    ]

    assert heavy == []


def test_exceptions_are_still_needed() -> None:
    said = {name(p) for p in files() if any(word in WORDS for _, word in names_in(p.read_text()))}
    read = {(name(p), room_of(one.module)) for p in files() for one in imports_of(p.read_text(), name(p))}
    named = {
        name(p)
        for p in files()
        if any(one.module.split(".")[0] in FAMILIES for one in imports_of(p.read_text(), name(p)))
    }

    assert HOLDS.keys() <= said
    assert UPSTAIRS.keys() <= read
    assert KNOWS.keys() <= named


# ── the watchman himself ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "caught"),
    [
        ("from vitreous.methods.fold import plus", True),
        ("import vitreous.cli.main", True),
        ("from vitreous import draw", True),
        ("from vitreous import explain", True),
        ("import vitreous", True),
        ("from vitreous import __version__, scenes", False),
        ("def f():\n    from vitreous.front import load", True),
        ("from vitreous.models.vit import ViT", False),
        ("from vitreous.core.errors import ModelError", False),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from vitreous.front import load", False),
        ("import torch", False),
    ],
)
def test_the_trespasser_is_named(text: str, caught: bool) -> None:
    found = trespasses(text, "capture/probe.py")

    assert bool(found) == caught
    assert all(one.startswith("capture/probe.py:") for one in found)


def test_comments_and_docstrings_may_speak_of_anything() -> None:
    text = '"""detach"""\n# requires_grad\nx = y.detach(); torch.autograd.grad(x)\ntorch.autograd.Function\n'

    assert [word for _, word in names_in(text) if word in WORDS | {"autograd.grad"}] == ["detach", "autograd.grad"]
