"""The package that CONTRIBUTING.md shows is built as it says, and used from the library and the command line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
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


PROGRAM = """
from pathlib import Path

import vitreous
from vitreous.cli.main import main
from vitreous.data import open_dataset

assert main(["methods", "meanhead"]) == 0
assert main(["metrics", "mass_in_top"]) == 0
assert main(["models"]) == 0
line = "bench --model small:tiny --model-arg width=24 --data stripes:x?count=3 --method meanhead+plus"
assert main([*line.split(), "--metric", "mass_in_top(fraction=0.5)", "--out", "results"]) == 0

print("--- library")
vit = vitreous.load("small:tiny")
dataset = open_dataset(Path("some.stripes"))
images = [sample.image for sample in dataset]
attribution = vitreous.explain(vit, images, target="blue", method="meanhead")
result = vitreous.evaluate(vit, images, attribution, "mass_in_top")
print(len(dataset), tuple(attribution.patches.shape), tuple(result.scores.shape))
"""


@pytest.mark.slow
def test_the_package_is_used_and_passes_its_contract_tests(tmp_path):
    """By the command line, by the library, and by the checks that the page shows: in one process that finds the package."""
    install(tmp_path)
    assert len(CHECKS) == 3
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))

    finished = subprocess.run(
        [sys.executable, "-c", "\n".join([PROGRAM, *CHECKS])],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths, "NO_COLOR": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert finished.returncode == 0, finished.stderr
    command_line, library = finished.stdout.split("--- library\n")
    assert "Attention of the last block" in command_line
    assert "Share of the positive mass" in command_line
    assert "small:tiny" in command_line
    assert "mass_in_top" in command_line
    assert any((tmp_path / "results").rglob("*.parquet"))
    assert library.splitlines()[0] == "4 (4, 16) (4,)"


def test_the_package_has_one_of_each_kind():
    groups = tomllib.loads(FILES["pyproject.toml"])["project"]["entry-points"]

    assert set(groups) == {"vitreous.methods", "vitreous.metrics", "vitreous.datasets", "vitreous.models"}
    assert {f"{value.replace('.', '/')}.py" for points in groups.values() for value in points.values()} < set(FILES)
