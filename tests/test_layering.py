"""Imports between the packages go one direction, and gradients and model libraries stay in the packages for them.

Every exception is listed with its reason.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "vitreous"

LAYERS = (  # a package imports from its own layer and from those before it
    {"core"},
    {"scenes"},  # images with known evidence and the embedded model
    {"models"},
    {"data"},  # images with labels, masks and boxes
    {"capture"},
    {"methods"},
    {"metrics"},
    {
        "arguments",
        "map_findings",
        "explanation",
        "front",
        "measure",
        "catalogue",
        "losses",
        "scores",
        "testing",
        "wrapping",
    },
    {"pairs"},  # similarity of two inputs
    {"bench"},  # plans, cells, executors and the store
    {"mapping", "maps"},  # maps of whole datasets: the pipeline, and the reader of its files
    {"draw", "report", "export"},
    {"cli", "web", "demo", "bridges", "__main__"},
)
LEVEL = {package: level for level, packages in enumerate(LAYERS) for package in packages}

UPWARD_IMPORTS = {
    ("methods/attribution.py", "draw"): "`.plot()` and `_repr_html_` import the drawing code when they are called",
    ("methods/attribution_files.py", "draw"): "`.save()` imports the drawing code for animations when it is called",
    ("methods/inside.py", "draw"): "`.plot()` imports the drawing code when it is called",
    ("arguments.py", "pairs"): "prompts of a whole CLIP model become targets when they are given",
    ("pairs/pair_attribution.py", "draw"): "`.plot()` and `.save()` import the drawing code when they are called",
}

GRADIENT_NAMES = {"detach", "detach_", "requires_grad", "requires_grad_"}  # and autograd.grad
GRADIENT_EXCEPTIONS = {
    "models/model_registry.py": "models that are built here need no gradients",
    "models/outputs.py": "a score without a gradient path to the images is refused",
    "scores.py": "an embedding to compare with is a constant",
    "testing/contract.py": "the contract tests check that `requires_grad` is unchanged",
    "testing/models.py": "the contract tests compare gradients of the parts with those of the model",
}

MODEL_LIBRARIES = {"timm", "transformers", "torchvision"}
LIBRARY_EXCEPTIONS = {"scenes/model.py": "builds the embedded model, a timm model"}


class Import(NamedTuple):
    file: str
    line: int
    module: str


def source_files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


@cache
def source_of(path: Path) -> str:
    return path.read_text()


def relative_name(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


@cache
def imports_of(text: str, file: str) -> list[Import]:
    return list(find_imports(text, file))


def find_imports(text: str, file: str) -> Iterator[Import]:
    """Yield every import that runs, also inside functions; imports under TYPE_CHECKING do not."""
    tree = ast.parse(text)
    type_checking_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for part in node.body
        for inner in ast.walk(part)
    }
    for node in ast.walk(tree):
        if id(node) in type_checking_only:
            continue
        if isinstance(node, ast.Import):
            yield from (Import(file, node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno} imports by dots; write the whole name"
            if node.module == "vitreous":  # `from vitreous import draw`
                yield from (Import(file, node.lineno, f"vitreous.{alias.name}") for alias in node.names)
            else:
                yield Import(file, node.lineno, node.module or "")


def package_of(module: str) -> str | None:
    """Return the package of a module of the library, or None for other modules.

    A name of `vitreous` itself may come from anywhere, as `vitreous/__init__.py` imports lazily: it counts as "front".
    """
    parts = module.split(".")
    if parts[0] != "vitreous" or parts[1:] == ["__version__"]:
        return None
    return parts[1] if len(parts) > 1 and parts[1] in LEVEL else "front"


def upward_imports(text: str, file: str) -> list[str]:
    """Describe the imports of a file from a later layer."""
    own_package = file.removesuffix(".py").split("/")[0]
    if own_package == "__init__":  # imports every package lazily
        return []
    violations = []
    for imported in imports_of(text, file):
        package = package_of(imported.module)
        if package is None or (file, package) in UPWARD_IMPORTS or LEVEL[package] <= LEVEL[own_package]:
            continue
        violations.append(
            f"{file}:{imported.line} ({own_package}) imports {imported.module}, which is in a later layer"
        )
    return violations


@cache
def names_in(text: str) -> list[tuple[int, str]]:
    return list(find_names(text))


def find_names(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and name of every name in the code, without comments and docstrings; `autograd.grad` is one name."""
    tokens = [t for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type in (tokenize.NAME, tokenize.OP)]
    for before, dot, token in zip([None, None, *tokens], [None, *tokens], tokens, strict=False):
        dotted = before is not None and dot is not None and dot.string == "." and before.string == "autograd"
        yield token.start[0], f"autograd.{token.string}" if dotted else token.string


def test_every_package_has_a_layer() -> None:
    packages = {relative_name(path).removesuffix(".py").split("/")[0] for path in source_files()} - {"__init__"}

    assert packages - LEVEL.keys() == set()


def test_packages_import_from_their_own_and_earlier_layers_only() -> None:
    assert [
        violation for path in source_files() for violation in upward_imports(source_of(path), relative_name(path))
    ] == []


def test_only_capture_handles_gradients() -> None:
    violations = [
        f"{relative_name(path)}:{line} uses {word}"
        for path in source_files()
        if not relative_name(path).startswith("capture/") and relative_name(path) not in GRADIENT_EXCEPTIONS
        for line, word in names_in(source_of(path))
        if word in GRADIENT_NAMES | {"autograd.grad"}
    ]

    assert violations == []


def test_only_models_import_model_libraries() -> None:
    violations = [
        f"{imported.file}:{imported.line} imports {imported.module}"
        for path in source_files()
        if not relative_name(path).startswith("models/") and relative_name(path) not in LIBRARY_EXCEPTIONS
        for imported in imports_of(source_of(path), relative_name(path))
        if imported.module.split(".")[0] in MODEL_LIBRARIES
    ]

    assert violations == []


def test_core_imports_no_torch() -> None:
    heavy = [
        imported
        for path in source_files()
        if relative_name(path).startswith("core/")
        for imported in imports_of(source_of(path), relative_name(path))
        if imported.module.split(".")[0] in {"torch", "numpy", "jaxtyping", *MODEL_LIBRARIES}
    ]

    assert heavy == []


def test_exceptions_are_still_needed() -> None:
    gradient_users = {
        relative_name(p) for p in source_files() if any(word in GRADIENT_NAMES for _, word in names_in(source_of(p)))
    }
    imports = {
        (relative_name(p), package_of(imported.module))
        for p in source_files()
        for imported in imports_of(source_of(p), relative_name(p))
    }
    library_users = {
        relative_name(p)
        for p in source_files()
        if any(
            imported.module.split(".")[0] in MODEL_LIBRARIES for imported in imports_of(source_of(p), relative_name(p))
        )
    }

    assert GRADIENT_EXCEPTIONS.keys() <= gradient_users
    assert UPWARD_IMPORTS.keys() <= imports
    assert LIBRARY_EXCEPTIONS.keys() <= library_users


# ── the checks themselves ─────────────────────────────────────────────────────────────────────────


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
def test_an_upward_import_is_reported(text: str, caught: bool) -> None:
    violations = upward_imports(text, "capture/probe.py")

    assert bool(violations) == caught
    assert all(violation.startswith("capture/probe.py:") for violation in violations)


def test_comments_and_docstrings_are_not_checked() -> None:
    text = '"""detach"""\n# requires_grad\nx = y.detach(); torch.autograd.grad(x)\ntorch.autograd.Function\n'

    assert [word for _, word in names_in(text) if word in GRADIENT_NAMES | {"autograd.grad"}] == [
        "detach",
        "autograd.grad",
    ]
