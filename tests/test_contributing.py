"""The package that CONTRIBUTING.md shows is built as it says, and used from the library and the command line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
FILES = dict(re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```', TEXT, flags=re.DOTALL | re.MULTILINE))
CHECKS = re.findall(r"^```python\n(.*?)^```", TEXT, flags=re.DOTALL | re.MULTILINE)


def install(folder: Path) -> None:
    """Write the files of the package, and the metadata that an installer would write."""
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    project = tomllib.loads(FILES["pyproject.toml"])["project"]
    metadata = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    groups = project["entry-points"]
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in groups[group].items()) for group in groups
    ]
    (metadata / "entry_points.txt").write_text("\n".join(lines))


def run(folder: Path, program: str) -> str:
    paths = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    finished = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=folder, env={**os.environ, "PYTHONPATH": paths, "NO_COLOR": "1", "COLUMNS": "200"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package")
    install(folder)
    return folder


def test_the_package_has_one_of_each_kind():
    groups = tomllib.loads(FILES["pyproject.toml"])["project"]["entry-points"]

    assert set(groups) == {"vitreous.methods", "vitreous.metrics", "vitreous.datasets", "vitreous.models"}
    assert {f"{value.replace('.', '/')}.py" for points in groups.values() for value in points.values()} < set(FILES)


@pytest.mark.slow
def test_the_command_line_knows_what_the_package_adds(package):
    program = """
        from vitreous.cli.main import main

        assert main(["methods", "meanhead"]) == 0
        assert main(["metrics", "mass_in_top"]) == 0
        assert main(["models"]) == 0
        line = "bench --model small:tiny --model-arg width=24 --data stripes:x?count=3 --method meanhead+plus"
        assert main([*line.split(), "--metric", "mass_in_top(fraction=0.5)", "--out", "results"]) == 0
    """
    output = run(package, program)

    assert "Attention of the last block" in output
    assert "Share of the positive mass" in output
    assert "small:tiny" in output
    assert "mass_in_top" in output
    assert any((package / "results").rglob("*.parquet"))


@pytest.mark.slow
def test_the_library_knows_what_the_package_adds(package):
    program = """
        import vitreous
        from pathlib import Path
        from vitreous.data import open_dataset

        vit = vitreous.load("small:tiny")
        dataset = open_dataset(Path("some.stripes"))
        images = [sample.picture for sample in dataset]
        attribution = vitreous.explain(vit, images, target="blue", method="meanhead")
        result = vitreous.evaluate(vit, images, attribution, "mass_in_top")
        print(len(dataset), tuple(attribution.patches.shape), tuple(result.scores.shape))
    """

    assert run(package, program).strip() == "4 (4, 16) (4,)"


@pytest.mark.slow
def test_what_is_shown_passes_its_contract_tests(package):
    assert len(CHECKS) == 3
    run(package, "\n".join(CHECKS))
