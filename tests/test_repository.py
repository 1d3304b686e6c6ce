"""Package contents, supported versions and configuration agree; names and words follow the style guide."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
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


# ── words and names ──────────────────────────────────────────────────────────────────────────────

# names that say nothing about the value that they hold
VAGUE = [
    "one",
    "found",
    "said",
    "told",
    "held",
    "those",
    "some",
    "made",
    "asked",
    "kept",
    "heard",
    "wanted",
    "known",
    "given",
]
ALSO_VAGUE = ["seen", "what", "who", "each", "got"]
BANNED = re.compile(r"\b(twins?|laws?|houses?|rooms|floors|hears?|heard|whoever|books?|data sets?)\b", re.IGNORECASE)
ALLOWED = {
    "src/vitreous/cli/check.py": {"laws"},  # a key of the JSON output
    "src/vitreous/scenes/scene_plan.py": {"house"},  # classes of Scenes
    "src/vitreous/scenes/drawings.py": {"house"},
    "docs/scenes.md": {"house"},
}
SOURCES = sorted((ROOT / "src" / "vitreous").rglob("*.py"))
NAMED = ("bench", "cli", "core", "data", "demo", "draw", "metrics", "models", "report", "scenes", "testing", "web")
STRICT = (
    "capture",
    "core",
    "methods",
    "metrics",
    "models",
    "pairs",
    "testing",
    "vitreous",
)  # attributes, too, and all the words
KEYWORDS = {
    ("bench", "kept"),
    ("bench", "known"),
    ("bench", "asked"),
}  # parameters and methods of stored runs and signals


OUTER = ("bench", "bridges", "cli", "data", "demo", "draw", "report", "scenes", "web")
VAGUE_OUTSIDE = (
    *VAGUE, "mine", "ours", "theirs", "several", "fresh", "lost", "same", "again", "either", "taken", "gone", "more",
)  # fmt: skip


@cache
def syntax_tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of every local variable, parameter and function."""
    fields = {
        id(statement.target)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in fields:
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef):
            yield node.lineno, node.name


def attribute_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of every attribute of an instance and field of a class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.ClassDef):
            for statement in node.body:
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    yield statement.lineno, statement.target.id


def test_names_and_attributes_of_the_inner_packages_carry_the_type_of_what_they_hold():
    import vitreous

    options = {option for method in vitreous.list_methods() for option in method["options"]}  # part of specs
    vague = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in SOURCES
        if path.parent.name in STRICT
        for tree in [syntax_tree(path)]
        for line, name in (*bound_names(tree), *attribute_names(tree))
        if name.lstrip("_") in (*VAGUE, *ALSO_VAGUE) and name not in options
    ]

    assert not vague, "\n".join(vague)


def test_names_carry_the_type_of_what_they_hold():
    vague = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in SOURCES
        for line, name in bound_names(syntax_tree(path))
        if name.lstrip("_") in VAGUE and path.parent.name in NAMED and (path.parent.name, name) not in KEYWORDS
    ]

    assert not vague, "\n".join(vague)


def test_names_outside_the_core_carry_the_type_too():
    vague = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in SOURCES
        for line, name in bound_names(syntax_tree(path))
        if name.lstrip("_") in VAGUE_OUTSIDE and path.parent.name in OUTER and (path.parent.name, name) not in KEYWORDS
    ]

    assert not vague, "\n".join(vague)


SCRIPTS = [
    path
    for pattern in ("docs/*.py", "study/*.py", "training/*.py", "benchmarks/*.py", "benchmarks/suite/*.py")
    for path in sorted(ROOT.glob(pattern))
]


SIDES = ("ours", "theirs", "what")  # fields of stored benchmark rows: both implementations, and the measured method


def test_names_of_scripts_carry_the_type_too():
    vague = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in SCRIPTS
        for line, name in bound_names(syntax_tree(path))
        if name.lstrip("_") in (*VAGUE_OUTSIDE, *ALSO_VAGUE, "begun", "beside") and name not in SIDES
    ]

    assert not vague, "\n".join(vague)


JAVASCRIPT = [path for kind in ("html", "js") for path in sorted((ROOT / "src" / "vitreous").rglob(f"*.{kind}"))]
VAGUE_IN_SCRIPTS = (
    *VAGUE_OUTSIDE, *ALSO_VAGUE, "own", "left", "both", "world", "tell", "look", "caught", "trouble", "gone", "quiet", "keep", "many",
)  # fmt: skip
IDENTIFIER = r"[A-Za-z_$][\w$]*"
DECLARATIONS = (  # of JavaScript; what a pattern captures may hold several names, with their default values
    rf"\b(?:const|let|var|class|function|import \* as)\s+({IDENTIFIER})",
    rf",\s*({IDENTIFIER})\s*=(?![=>])",  # `let a = 1, b = 2`
    r"\blet\s+([\w$,\s]+);",
    r"\b(?:const|let|var|,)\s*[{\[]([^()=;]*)[}\]]\s*(?:=(?![=>])|of\b)",  # destructuring
    r"\bimport\s*\{([^}]*)\}",
    rf"(?<![\w$.])({IDENTIFIER})\s*=>",
    r"\(([^()]*)\)\s*=>",
    rf"\b(?!(?:if|for|while|switch)\b){IDENTIFIER}\s?\(([^()]*)\)\s*\{{",  # functions, methods and catch
)


def names_in_script(text: str) -> Iterator[tuple[int, str]]:
    """Line and name of every declaration and parameter in JavaScript, or in the inline scripts of a page."""
    if "</" in text:
        text = re.sub(r"(?s)(^|</script>).*?(<script>|$)", lambda match: "\n" * match[0].count("\n"), text)
    text = re.sub(r"(?m)(^|\s)//.*$", "", text)
    for pattern in DECLARATIONS:
        for match in re.finditer(pattern, text):
            names = re.sub(rf"{IDENTIFIER}(?::| as )|=\s*[^,}}\]]*", "", match[1])  # keys and default values
            yield from ((text.count("\n", 0, match.start(1)) + 1, name) for name in re.findall(IDENTIFIER, names))


def test_names_in_javascript_carry_the_type_too():
    vague = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in JAVASCRIPT
        for line, name in sorted(set(names_in_script(path.read_text(encoding="utf-8"))))
        if name.lstrip("_") in VAGUE_IN_SCRIPTS
    ]

    assert not vague, "\n".join(vague)


def test_prose_uses_the_words_of_the_field():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    templates = [path for kind in ("html", "js") for path in (ROOT / "src").rglob(f"*.{kind}")]
    notebooks = (ROOT / "docs" / "notebooks").glob("*.ipynb")
    banned = [
        f"{path.relative_to(ROOT)}:{line} {match[0]}"
        for path in (*SOURCES, *pages, *templates, *notebooks)
        for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for match in BANNED.finditer(text)
        if match[0] not in ALLOWED.get(path.relative_to(ROOT).as_posix(), ())
    ]

    assert not banned, "\n".join(banned)


# words that a reader has to decode; in brackets what to write instead
PRIVATE = [
    "pictures?",  # image
    "handshakes?",  # check of the adapter
    "front doors?",  # explain, evaluate
    "seen through",  # analysed as a network
    "sees through",
    "told (?:from|apart)",  # significantly different, distinguished
    "knows? no class",  # does not depend on the class
    "images? that chose",  # images that were not used to select anything
    "(?:half|images?) to (?:choose|confirm) (?:by|on)",  # selection half, confirmation half
    "asked about",  # explaining the probability
    "(?:score|effect|faithfulness|AP|sparseness) less that of",  # minus
    "calmer|less calm",  # less sensitive
    "not at hand",  # not available
    "(?:its|their) kin",
    "truly",
    "anew",  # again
    "nobody",
    "somebody",
    "whoever",
    "forward passes' worth",
    "smallest worst case",  # best worst case
    "lets? go of the interpreter",  # releases the GIL
    "less work is less",
]


def test_pages_say_image_and_name_no_private_words():
    pages = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "benchmarks" / "README.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs/how-to").glob("*.md"),
        *(ROOT / "docs/study").glob("*.md"),
    ]
    private = re.compile(rf"\b({'|'.join(PRIVATE)})\b", re.IGNORECASE)
    words = [
        f"{path.relative_to(ROOT)}:{line} {match[0]}"
        for path in pages
        for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for match in private.finditer(re.sub(r"`[^`]*`", "", text))  # names in code may be old ones
    ]

    assert not words, "\n".join(words)


def test_names_of_tests_say_image_and_name_no_private_words():
    private = re.compile(r"_(pictures?|twins?|laws?|handshakes?|told|nobody|somebody|sentence|anew|data_sets?)(?=_|$)")
    names = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for line, name in re.findall(r"(\d+) def (test_\w+)", number_lines(path))
        if private.search(name)
    ]

    assert not names, "\n".join(names)


def number_lines(path: Path) -> str:
    """Text of a file with the number of its line in front of each stripped line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return "\n".join(f"{number} {line.strip()}" for number, line in enumerate(lines, 1))


def test_source_files_are_short():
    lengths = {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES
    }

    assert {file: lines for file, lines in lengths.items() if lines > 500} == {}


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
