"""The files around the code agree with each other: package contents, supported versions, checks of CI and of commits."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOW = (ROOT / ".github" / "workflows" / "tests.yml").read_text()
SHIPPED = {".toml", ".py", ".typed", ".json", ".html", ".css", ".js", ".svg", ".safetensors"}


def lower_bounds() -> dict[str, str]:
    requirements = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["hf"]]
    return dict(re.split(r">=", requirement, maxsplit=1) for requirement in requirements)


def test_the_wheel_holds_code_templates_and_weights_only():
    files = [
        path for path in (ROOT / "src" / "vitreous").rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]

    assert {path.suffix for path in files} == SHIPPED
    assert sum(path.stat().st_size for path in files) < 16_000_000
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
