"""Package contents, supported versions and configuration agree."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOW = (ROOT / ".github" / "workflows" / "tests.yml").read_text()
SHIPPED = {
    ".toml",
    ".py",
    ".pyi",
    ".typed",
    ".json",
    ".html",
    ".jinja",
    ".css",
    ".mplstyle",
    ".js",
    ".svg",
    ".safetensors",
}


def lower_bounds() -> dict[str, str]:
    requirements = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["hf"]]
    return dict(re.split(r">=", requirement, maxsplit=1) for requirement in requirements)


def test_the_wheel_holds_code_templates_and_weights_only():
    files = [
        path for path in (ROOT / "src" / "vitreous").rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]

    assert {path.suffix for path in files} == SHIPPED
    assert sum(path.stat().st_size for path in files) < 21_000_000  # 17 MB of it are weights
    assert (ROOT / "src" / "vitreous" / "py.typed").exists()


def test_every_requirement_is_named_once():
    names = [re.split(r"[\[<>=]", requirement)[0] for requirement in PROJECT["dependencies"]]

    assert len(names) == len(set(names))


def test_the_workflow_runs_the_versions_that_the_project_supports():
    pythons = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", line)]
    bounds = lower_bounds()

    assert re.search(r'python: \["([^\]]*)"\]', WORKFLOW).group(1).split('", "') == pythons
    lowest = re.search(r'dependencies: lowest, versions: "([^"]*)"', WORKFLOW).group(1)
    for package, version in (pair.split("==") for pair in lowest.split()):
        assert version.startswith(bounds[package]), (
            f"{package} is tested from {version} and supported from {bounds[package]}"
        )


@pytest.mark.parametrize(
    "file", [".pre-commit-config.yaml", ".github/workflows/tests.yml", ".github/ISSUE_TEMPLATE/config.yml"]
)
def test_configuration_is_yaml(file):
    yaml = pytest.importorskip("yaml")

    assert isinstance(yaml.safe_load((ROOT / file).read_text()), dict)


def test_a_commit_is_checked_by_the_commands_of_make_lint():
    recipe = (ROOT / "Makefile").read_text()
    hooks = re.findall(r"entry: \.venv/bin/(\w+ ?\w*)", (ROOT / ".pre-commit-config.yaml").read_text())

    assert [hook.split()[0] for hook in hooks] == ["ruff", "ruff", "pyright"]
    assert all(f"$(BIN)/{hook}" in recipe for hook in hooks)


def test_citation_and_package_have_one_version():
    import vitreous

    assert f"version: {vitreous.__version__}" in (ROOT / "CITATION.cff").read_text()


# ── source files ───────────────────────────────────────────────────────────────────────────────

SOURCES = sorted((ROOT / "src" / "vitreous").rglob("*.py"))


@cache
def syntax_tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def test_source_files_are_short():
    lengths = {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES
    }

    assert {file: lines for file, lines in lengths.items() if lines > 600} == {}


def test_class_names_are_unique():
    names: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in syntax_tree(path).body:
            if isinstance(node, ast.ClassDef):
                names.setdefault(node.name, []).append(path.name)

    assert {name: files for name, files in names.items() if len(files) > 1} == {}


def test_an_explanation_passes_through_the_functions_of_the_architecture_page():
    import vitreous

    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.split("## From `explain` to the map")[1].split("##")[0]
    documented = re.findall(r"^\| `([\w.]+)` \|", table, flags=re.MULTILINE)
    called: list[str] = []

    def record(frame, event, argument):
        code = frame.f_code
        names = (f"{Path(code.co_filename).stem}.{code.co_name}", code.co_qualname)
        if event == "call":
            called.extend(name for name in names if name in documented and name not in called)

    model, images = vitreous.load("scenes"), torch.zeros(1, 3, 112, 112)
    vitreous.resolve("ixg+plus")  # imports the methods, which takes long while every call is recorded
    sys.setprofile(record)
    try:
        vitreous.explain(model, images, method="ixg+plus")
    finally:
        sys.setprofile(None)

    assert len(documented) <= 8
    assert called == documented
