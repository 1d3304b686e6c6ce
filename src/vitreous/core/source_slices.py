"""The part of the source that a function needs: statements of its module and of the modules that they import."""

from __future__ import annotations

import ast
import sys
import sysconfig
import tokenize
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec, resolve_name
from pathlib import Path

# a name by which code finds other code without naming it: the whole module counts
UNNAMED = frozenset(
    (
        "__import__",
        "eval",
        "evaluate",
        "exec",
        "explain",
        "globals",
        "import_module",
        "locals",
        "modules",
        "resolve",
        "vars",
    )
)
STANDARD_LIBRARY = Path(sysconfig.get_paths()["stdlib"])


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement at the top level of a module.

    Attributes
    ----------
    text
        The statement without comments and docstrings.
    binds, mentions
        Names that it defines, and all names in it.
    imports
        Modules that it imports, with the name that is taken from each; None for the module itself.
    is_definition
        Whether it is a function or class, which does nothing before it is called.
    decorators
        Names that its decorators begin with.
    """

    text: str
    binds: frozenset[str]
    mentions: frozenset[str]
    imports: tuple[tuple[str, str | None], ...]
    is_definition: bool
    decorators: frozenset[str]


@dataclass(slots=True)
class Needed:
    """Names of a module that are needed, and the statements that were taken for them."""

    names: set[str] = field(default_factory=set)
    whole: bool = False
    taken: set[int] = field(default_factory=set)


def slice_source(module: str, name: str) -> list[bytes]:
    """The statements that a top-level name of a module needs, with the names of their modules.

    A statement is taken if it binds a needed name. Statements that are neither definitions nor imports are also taken if they
    mention one, and definitions if their decorator may register them somewhere. What is taken needs the names that it
    mentions. Modules that it imports are followed in the same package and where they are not installed.

    Parameters
    ----------
    module
        Name of the module.
    name
        Name that is needed. If the module does not bind it, all of it counts.

    Returns
    -------
    list of bytes
        Empty if the module has no source.
    """
    needed: dict[str, Needed] = {}
    waiting: list[tuple[str, str | None]] = [(module, name)]
    package = module.split(".", maxsplit=1)[0]
    while waiting:
        own_module, own_name = waiting.pop()
        statements = read_statements(own_module)
        if statements is None:
            continue
        own = needed.setdefault(own_module, Needed())
        if own_name is not None and any(own_name in statement.binds for statement in statements):
            own.names.add(own_name)
        elif own_name is None or find_origin(f"{own_module}.{own_name}") is None:  # else `from package import module`
            own.whole = True
        for statement in take_statements(statements, own, package):
            followed = [entry for entry in statement.imports if is_followed(entry[0], package)]
            # `from package import name`: the name may be a module
            modules = [(f"{source}.{taken}", None) for source, taken in followed if taken is not None]
            waiting += [*followed, *modules]
    pieces: list[bytes] = []
    for own_module in sorted(needed):
        statements = read_statements(own_module) or ()
        pieces.append(own_module.encode())
        pieces += [statements[index].text.encode() for index in sorted(needed[own_module].taken)]
    return pieces


def take_statements(statements: tuple[Statement, ...], needed: Needed, package: str) -> Iterator[Statement]:
    """Take the statements that are needed, until there are no more; yield those that were not taken before."""
    installed = {
        name
        for statement in statements
        for name in statement.binds
        if statement.imports and not any(is_followed(module, package) for module, _ in statement.imports)
    }
    grew = True
    while grew:
        grew = False
        for index, statement in enumerate(statements):
            if index in needed.taken or not (needed.whole or is_needed(statement, needed.names, installed)):
                continue
            needed.taken.add(index)
            needed.names |= statement.mentions
            needed.whole = needed.whole or bool(statement.mentions & UNNAMED)
            grew = True
            yield statement


def is_needed(statement: Statement, names: set[str], installed: set[str]) -> bool:
    if statement.binds & (names | {"*"}):
        return True
    if statement.is_definition:  # a decorator that is not of an installed package may put it where others find it
        return bool(statement.decorators - installed)
    return not statement.imports and bool(statement.mentions & names)


def is_followed(module: str, package: str) -> bool:
    """Whether an imported module counts: those of the same package, and modules that are not installed."""
    top = module.split(".", maxsplit=1)[0]
    if top == "vitreous" or top in sys.stdlib_module_names:
        return False
    return top == package or not is_installed(top)


def is_installed(module: str) -> bool:
    """Whether a module is in a folder of installed packages, or cannot be found."""
    origin = find_origin(module)
    return module != "__main__" if origin is None else is_in_installed_folder(origin)


def is_in_installed_folder(file: Path) -> bool:
    return bool({"site-packages", "dist-packages"} & set(file.parts)) or file.is_relative_to(STANDARD_LIBRARY)


def find_origin(module: str) -> Path | None:
    """File of a module; None if it has none, as that of a notebook."""
    loaded = sys.modules.get(module)
    file = getattr(loaded, "__file__", None)
    if loaded is None:
        with suppress(Exception):  # importing its package may raise anything
            spec = find_spec(module)
            file = None if spec is None or not spec.has_location else spec.origin
    return None if file is None else Path(file)


def read_statements(module: str) -> tuple[Statement, ...] | None:
    """Statements of a module at its top level; None if it has no file."""
    origin = find_origin(module)
    try:
        stat = None if origin is None else origin.stat()
    except OSError:
        return None
    if origin is None or stat is None:
        return None
    package = module if origin.name == "__init__.py" else module.rpartition(".")[0]
    return parse_statements(origin, package, (stat.st_mtime_ns, stat.st_size))


@lru_cache(maxsize=256)
def parse_statements(origin: Path, package: str, stamp: tuple[int, int]) -> tuple[Statement, ...] | None:
    """Parse a file; a file that is no Python source, such as an extension module, is one statement. `stamp` is for the cache."""
    try:
        with tokenize.open(origin) as file:
            tree = ast.parse(file.read())
    except (SyntaxError, ValueError):
        return (Statement(origin.read_bytes().hex(), frozenset(), frozenset(), (), False, frozenset()),)
    except OSError:
        return None
    return tuple(describe_statement(node, package) for node in tree.body if not is_main_guard(node))


def is_main_guard(node: ast.stmt) -> bool:
    """Whether a statement is `if __name__ == "__main__"`, which drives a run and defines nothing that is called in it."""
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("__name__ == '__main__'", "'__main__' == __name__")


def describe_statement(node: ast.stmt, package: str) -> Statement:
    imports: list[tuple[str, str | None]] = []
    binds: set[str] = set()
    mentions: set[str] = set()
    is_definition = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    decorators = node.decorator_list if is_definition else []
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            drop_docstring(inner)
            mentions.add(inner.name)
        elif isinstance(inner, ast.Name):
            mentions.add(inner.id)
            if isinstance(inner.ctx, ast.Store) and not is_definition:
                binds.add(inner.id)
        elif isinstance(inner, ast.Attribute):
            mentions |= {inner.attr} & UNNAMED
        elif isinstance(inner, ast.Import):
            imports += [(alias.name, None) for alias in inner.names]
            own = {alias.asname or alias.name.split(".")[0] for alias in inner.names}
            binds |= set() if is_definition else own
        elif isinstance(inner, ast.ImportFrom):
            source = (
                resolve_name("." * inner.level + (inner.module or ""), package) if inner.level else inner.module or ""
            )
            imports += [(source, None if alias.name == "*" else alias.name) for alias in inner.names]
            binds |= set() if is_definition else {alias.asname or alias.name for alias in inner.names}
    if is_definition:
        binds.add(node.name)
    else:
        binds |= {inner.name for inner in ast.walk(node) if isinstance(inner, ast.FunctionDef | ast.ClassDef)}
    return Statement(
        ast.unparse(node),
        frozenset(binds),
        frozenset(mentions | binds),
        tuple(dict.fromkeys(imports)),
        is_definition,
        frozenset(map(find_first_name, decorators)),
    )


def find_first_name(decorator: ast.expr) -> str:
    """The name that a decorator begins with: `a` of `@a.b(c)`."""
    while isinstance(decorator, ast.Call | ast.Attribute):
        decorator = decorator.func if isinstance(decorator, ast.Call) else decorator.value
    return decorator.id if isinstance(decorator, ast.Name) else ""


def drop_docstring(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        node.body[:1] = [] if len(node.body) > 1 else [ast.copy_location(ast.Pass(), first)]
