"""Hook of mkdocs: adds a page per public object of the package, written from its docstring by mkdocstrings."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

SOURCE = Path(__file__).parents[1] / "src"
GROUPS = {
    "Explain": (
        "load",
        "wrap",
        "see_through",
        "explain",
        "inside",
        "Attribution",
        "Inside",
    ),
    "Pairs and texts": ("explain_pair", "PairAttribution", "TextTower", "prompt_target", "text_target", "TextTarget"),
    "Measure": ("evaluate", "MetricResult", "Measured", "CurveAxes"),
    "Look up": ("list_methods", "list_metrics", "list_models", "resolve", "resolve_metric"),
    "Models and images": (
        "BlackBox",
        "Network",
        "ViT",
        "NamedModule",
        "ModelOrigin",
        "Preprocess",
        "Probe",
        "Linearisation",
    ),
    "Extend": ("method", "Method", "Layer", "metric", "Metric", "fold", "Fold", "adapter", "source", "operation_rule"),
    "Folds": ("first", "last", "at", "plus", "skipplus", "rollout"),
}


def public_names() -> Iterator[tuple[str, str]]:
    """Every public name of `vitreous` with the module that it is imported from, from the source text."""
    for node in ast.parse((SOURCE / "vitreous" / "__init__.pyi").read_text()).body:
        if isinstance(node, ast.ImportFrom):
            yield from ((alias.name, str(node.module)) for alias in node.names)


def public_objects() -> dict[str, str]:
    """Full name of every public object by its name in `vitreous`."""
    return {name: f"{home}.{name}" for name, home in public_names() if home != "vitreous"}


def public_modules() -> dict[str, dict[str, str]]:
    """Public modules, with the full names of the objects that each of them exports."""
    return {name: dict(exports(name)) for name, home in public_names() if home == "vitreous"}


def exports(module: str) -> Iterator[tuple[str, str]]:
    """Name and full name of everything that the `__init__.py` of a package imports from its files, or a file defines."""
    for node in ast.parse(source_of(module)).body:
        if isinstance(node, ast.FunctionDef) and not (SOURCE / "vitreous" / module).is_dir():
            if ">>>" in (ast.get_docstring(node) or ""):
                yield node.name, f"vitreous.{module}.{node.name}"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"vitreous.{module}."):
            yield from ((alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def source_of(module: str) -> str:
    """Source text of a package's `__init__.py` or of a module."""
    file = SOURCE / "vitreous" / module
    return (file / "__init__.py" if file.is_dir() else file.with_suffix(".py")).read_text()


def summary(path: str) -> str:
    """First line of an object's docstring, from the source text."""
    module, _, name = path.rpartition(".")
    file = SOURCE / Path(*module.split("."))
    text = (file / "__init__.py" if file.is_dir() else file.with_suffix(".py")).read_text()
    nodes = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    documented = [ast.get_docstring(node) for node in nodes if node.name == name]
    return (documented[-1] or "").split("\n")[0] if documented else ""  # overloads have no docstring


def page_name(name: str) -> str:
    """File of an object; `Method` and `method` need two files also where upper and lower case are the same."""
    return f"{name.lower()}-class" if name[0].isupper() else name


def page(path: str, title: str, level: int) -> str:
    """Heading, signature and docstring of one object."""
    options = {"heading": f"'{title}'", "heading_level": level, "show_root_heading": "true"}
    return (
        "\n".join([f"::: {path}", "    options:", *(f"      {key}: {value}" for key, value in options.items())]) + "\n"
    )


def pages() -> dict[str, str]:
    """Text of every page by its path."""
    objects, modules = public_objects(), public_modules()
    grouped = {name for names in GROUPS.values() for name in names}
    rest = [name for name in objects if name not in grouped]
    errors = [name for name in rest if name.endswith("Error") or name == "Caveat"]
    others = [name for name in rest if name not in errors]
    groups = {**GROUPS, **({"More": others} if others else {}), "Errors": errors}
    index = ["# API reference", "", "Everything that `vitreous` exports, written from the docstrings.", ""]
    written = {}
    for group, names in groups.items():
        index += [f"## {group}", "", "| | |", "|---|---|"]
        for name in names:
            index.append(f"| [`{name}`]({page_name(name)}.md) | {summary(objects[name])} |")
            written[f"api/{page_name(name)}.md"] = page(objects[name], f"vitreous.{name}", level=1)
        index.append("")
    index += ["## Modules", "", "| | |", "|---|---|"]
    for module, exported in modules.items():
        title = (ast.get_docstring(ast.parse(source_of(module))) or "").split("\n")[0]
        index.append(f"| [`{module}`]({module}.md) | {title} |")
        parts = [page(path, name, level=2) for name, path in exported.items() if summary(path)]
        head = f"# vitreous.{module}\n\n::: vitreous.{module}\n    options:\n      members: false\n"
        written[f"api/{module}.md"] = "\n".join([head, *parts])
    return {"api/index.md": "\n".join(index) + "\n", **written}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages; mkdocs calls this when it has listed the folder."""
    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files
