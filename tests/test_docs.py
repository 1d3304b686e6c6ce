"""What the documents show runs, and what they point to exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def snippets(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", [page for page in PAGES if snippets(page)], ids=lambda page: page.name)
def test_every_snippet_runs(page, tmp_path, monkeypatch):
    from vitreous import list_methods, list_metrics
    from vitreous.methods.method import METHODS
    from vitreous.metrics.metric import METRICS

    monkeypatch.chdir(tmp_path)
    known, names = {one["name"] for one in (*list_methods(), *list_metrics())}, {"__name__": "snippet"}
    try:
        for number, code in enumerate(snippets(page)):
            exec(compile(code, f"{page.name}[{number}]", "exec"), names)
    finally:
        for registry in (METHODS, METRICS):
            for name in set(registry) - known:
                registry.discard(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} points to {target}"


def test_every_paper_a_method_names_is_in_the_bibliography():
    import vitreous

    keys = set(re.findall(r"@\w+\{(\w+),", (ROOT / "docs" / "references.bib").read_text()))
    named = {facts["paper"] for facts in vitreous.list_methods() if facts["paper"]}

    assert named <= keys, named - keys
