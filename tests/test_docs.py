"""Code in the documents runs, and links point to existing files."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from tests.cases import each

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def snippets(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if snippets(page) and page.name != "CONTRIBUTING.md"], ids=lambda page: page.name
)
def test_every_snippet_runs(page, tmp_path, monkeypatch):
    from vitreous import list_methods, list_metrics
    from vitreous.capture.operation_registry import RULES
    from vitreous.methods.method import METHODS
    from vitreous.metrics.metric import METRICS

    monkeypatch.chdir(tmp_path)
    known, names = {one["name"] for one in (*list_methods(), *list_metrics())}, {"__name__": "snippet"}
    rules = dict(RULES)
    try:
        for number, code in enumerate(snippets(page)):
            exec(compile(code, f"{page.name}[{number}]", "exec"), names)
    finally:
        for registry in (METHODS, METRICS):
            for name in set(registry) - known:
                registry.discard(name)
        for name in set(RULES) - set(rules):
            del RULES[name]


@each("page", PAGES)
def test_every_link_to_a_file_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} points to {target}"


@each("page", PAGES)
def test_every_link_to_a_section_leads_to_a_heading(page):
    toc = pytest.importorskip("markdown.extensions.toc")

    def anchors(file: Path) -> set[str]:
        headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", file.read_text(), flags=re.M | re.S), flags=re.M)
        texts = [re.sub(r"[`*]|\[(.*?)\]\(.*?\)", r"\1", heading) for heading in headings]
        return {toc.slugify(text, "-") for text in texts} | set(
            re.findall(r'(?:id="|\{: ?#)([\w-]+)', file.read_text())
        )

    links = re.findall(r"\]\(([\w./-]*)#([\w-]+)\)", page.read_text())
    files = [(page if not path else page.parent / path, anchor) for path, anchor in links]
    assert not [(path.name, anchor) for path, anchor in files if path.exists() and anchor not in anchors(path)]


def test_warnings_fail_the_build_of_the_documentation_and_bytecode_is_not_published():
    config = pytest.importorskip("mkdocs.config").load_config(str(ROOT / "mkdocs.yml"))
    recipe = re.search(r"^docs:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), flags=re.M)[1].split("#")[0]

    assert "mkdocs build --strict" in recipe
    assert "--quiet" not in recipe  # hides warnings from --strict
    assert config.exclude_docs.match_file("study/__pycache__/run.cpython-311.pyc")
    assert not config.exclude_docs.match_file("study/index.md")


def test_the_first_figure_of_the_readme_shows_the_default_method_first():
    from PIL import Image

    from vitreous.core.defaults import DEFAULT_METHOD

    first = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", (ROOT / "README.md").read_text())[0]
    with Image.open(ROOT / first) as image:
        methods = image.info["Description"].split(" · ")

    assert methods[0] == DEFAULT_METHOD


def test_every_paper_a_method_names_is_in_the_bibliography():
    import vitreous

    keys = set(re.findall(r"@\w+\{(\w+),", (ROOT / "docs" / "references.bib").read_text()))
    named = {facts["paper"] for facts in vitreous.list_methods() if facts["paper"] and " " not in facts["paper"]}

    assert named <= keys, named - keys


# ── notebooks ────────────────────────────────────────────────────────────────────────────────────

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def code_of(notebook: Path) -> list[str]:
    cells = json.loads(notebook.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_there_are_notebooks_and_a_page_names_each():
    named = (ROOT / "docs" / "notebooks.md").read_text()

    assert len(NOTEBOOKS) == 2
    assert all(f"notebooks/{notebook.name}" in named for notebook in NOTEBOOKS)


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.name)
def test_every_notebook_runs_from_the_first_cell_to_the_last(notebook, tmp_path, monkeypatch):
    """As Jupyter does: the last expression of a cell is shown."""
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "notebook"}

    for number, code in enumerate(code_of(notebook)):
        tree, where = ast.parse(code), f"{notebook.name}[{number}]"
        shown = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, where, "exec"), names)
        if shown is not None:
            value = eval(compile(shown, where, "eval"), names)
            assert value is None or (getattr(value, "_repr_html_", None) or value.__repr__)()


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.name)
def test_notebooks_are_committed_without_outputs(notebook):
    book = json.loads(notebook.read_text())

    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    assert all(not cell["outputs"] for cell in book["cells"] if cell["cell_type"] == "code")
