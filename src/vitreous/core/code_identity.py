"""Identity of code: what a stored number depends on besides options, weights and pixels.

The library's own code is identified by its version and a hash of its source files. Other code (methods, metrics, readers,
adapters and sources of plugins, scripts and notebooks) is identified by its module, the installed distribution that brings
it, and a hash of two things:

- the source, as far as the function needs it: its definition, the statements of its module that bind or mention a name
  that it needs, and the same of every module that these import, if it belongs to the same package or is not installed.
  Comments, docstrings and formatting do not count.
- what was loaded: bytecode, defaults and closures of the function and of the functions that it calls. It identifies code
  without source (notebooks, `exec`), and code that was edited after it was imported.

Not seen are modules and files that are only named by text at run time.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from importlib.metadata import entry_points, packages_distributions, version
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from vitreous import __version__
from vitreous.core.digests import digest, hash_file
from vitreous.core.source_slices import find_origin, is_in_installed_folder, is_installed, slice_source

OWN_PACKAGE = Path(__file__).parents[1]
# of the library's own files: these compute no number that is stored
NOT_COMPUTING = ("bridges", "catalogue.py", "cli", "demo", "draw", "export.py", "maps.py", "report", "testing", "web")
# whose versions are recorded beside results, and do not make them others
FRAMEWORKS = frozenset(
    (
        "beartype",
        "jaxtyping",
        "numpy",
        "pandas",
        "PIL",
        "pyarrow",
        "scipy",
        "timm",
        "torch",
        "torchvision",
        "transformers",
    )
)
UNCOUNTED = (
    "__dict__",
    "__doc__",
    "__firstlineno__",
    "__module__",
    "__static_attributes__",
    "__weakref__",
)  # of a class
LARGEST_ARRAY = 1 << 20  # values; larger ones in closures and notebooks are named by their shape
PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...))


@dataclass(frozen=True, slots=True, order=True)
class CodeIdentity:
    """Where a function or class comes from, and a hash of its code.

    Parameters
    ----------
    name
        Module and qualified name.
    distribution
        Installed distribution and its version, such as "my-package 0.1"; empty if there is none.
    digest
        Hash of the code.

    Examples
    --------
    >>> from vitreous.core.code_identity import CodeIdentity
    >>> str(CodeIdentity("my_package.methods.meanhead", "my-package 0.1", "5f2c"))
    'my_package.methods.meanhead (my-package 0.1) 5f2c'
    """

    name: str
    distribution: str
    digest: str

    def __str__(self) -> str:
        return " ".join(filter(None, (self.name, self.distribution and f"({self.distribution})", self.digest)))


@functools.cache
def identify_library() -> str:
    """Version of the library and a hash of its source files that compute what is stored; read once per process."""
    files = [
        path
        for path in sorted(OWN_PACKAGE.rglob("*.py"))
        if path.relative_to(OWN_PACKAGE).parts[0] not in NOT_COMPUTING
    ]
    pieces = (f"{path.relative_to(OWN_PACKAGE).as_posix()} {hash_file(path)}".encode() for path in files)
    return f"{__version__} {digest(*pieces, size=8)}"


def identify_code(*values: Any) -> tuple[CodeIdentity, ...]:
    """Identities of all functions and classes in some objects that are neither the library's nor a framework's.

    Parameters
    ----------
    *values
        Functions, classes, and objects that hold them: data classes, containers, partial functions, closures.

    Returns
    -------
    tuple of CodeIdentity
        Sorted and without duplicates; empty if all code is the library's.
    """
    objects_by_id: dict[int, Any] = {}
    return tuple(sorted({identify_root(root) for value in values for root in find_outside_code(value, objects_by_id)}))


def identify_root(root: Any) -> CodeIdentity:
    code: Any = root.func if isinstance(root, functools.partial) else root
    code = code if isinstance(code, FunctionType | type) else type(code)
    module, name = code.__module__ or "", code.__qualname__
    sources = slice_source(module, name.split(".")[0]) if is_in_file(code, module) else []
    loaded = list(list_loaded(root, {}, has_source=bool(sources)))
    distribution = find_distribution(module.split(".")[0])
    hashed = digest(*sources, *(piece.encode() for piece in loaded), size=8)
    return CodeIdentity(f"{module}.{name}", distribution, hashed)


def is_in_file(code: Any, module: str) -> bool:
    """Whether a function or class was defined by the file of its module; notebooks and `exec` define theirs elsewhere."""
    origin = find_origin(module)
    return origin is not None and all(file == origin for file in list_files(code))


def list_files(code: Any) -> list[Path]:
    """File of a function, or the files of the functions that a class defines in its module."""
    functions = [code] if isinstance(code, FunctionType) else vars(code).values()
    own = [item for item in functions if isinstance(item, FunctionType) and item.__module__ == code.__module__]
    return [Path(function.__code__.co_filename) for function in own]


def find_outside_code(value: Any, objects_by_id: dict[int, Any]) -> Iterator[Any]:
    """Functions, classes and callable objects in a value that are not the library's; `objects_by_id` are those already searched."""
    if isinstance(value, PLAIN) or id(value) in objects_by_id:
        return
    objects_by_id[id(value)] = value
    inner: Iterable[Any] = ()
    if isinstance(value, FunctionType):
        own = inspect.unwrap(value)
        if isinstance(own, FunctionType) and is_outside(own.__module__):
            yield own
            return
        inner = list_contents(value)
    elif isinstance(value, type):
        if is_outside(value.__module__):
            yield value
    elif isinstance(value, functools.partial):
        if is_outside(getattr(value.func, "__module__", None)):
            yield value
        inner = (value.func, value.args, value.keywords)
    elif isinstance(value, MethodType):
        inner = (value.__func__, value.__self__)
    elif isinstance(value, Mapping):
        inner = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        inner = value
    elif is_outside(type(value).__module__):
        yield value
    elif is_dataclass(value):
        inner = [getattr(value, item.name, None) for item in fields(value)]
    for part in inner:
        yield from find_outside_code(part, objects_by_id)


def list_contents(function: Any) -> list[Any]:
    """What a function keeps besides its code: defaults, the contents of its closure, and the function that it wraps."""
    contents: list[Any] = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # not filled yet
            contents.append(cell.cell_contents)
    return [*contents, *([function.__wrapped__] if hasattr(function, "__wrapped__") else [])]


def is_outside(module: str | None) -> bool:
    """Whether code of a module is neither the library's, nor the standard library's, nor a framework's.

    Code without a module is a wrapper that was generated (by jaxtyping, for example).
    """
    top = (module or "").split(".")[0]
    return top not in ("", "vitreous") and top not in FRAMEWORKS and top not in sys.stdlib_module_names


@functools.cache
def find_distribution(package: str) -> str:
    """Name and version of the installed distribution of a top-level package; empty if there is none."""
    for group in ("vitreous.methods", "vitreous.metrics", "vitreous.datasets", "vitreous.models"):
        for point in entry_points(group=group):
            if point.value.split(":")[0].split(".")[0] == package and point.dist is not None:
                return f"{point.dist.name} {point.dist.version}"
    names = packages_distributions().get(package, []) if is_installed(package) else []
    return ", ".join(f"{name} {version(name)}" for name in sorted(set(names)))


# ── what was loaded ──────────────────────────────────────────────────────────────────────────────


def list_loaded(value: Any, objects_by_id: dict[int, Any], *, has_source: bool) -> Iterator[str]:
    """Text of the loaded code of a function, class or object, and of the code that it calls.

    Without source, plain values of the global names that it reads are part of it.
    """
    if isinstance(value, PLAIN):
        yield f"{type(value).__name__} {value!r}"
        return
    if id(value) in objects_by_id:
        return
    objects_by_id[id(value)] = value
    if isinstance(value, CodeType):
        yield from list_code(value)
        return
    inner: Iterable[Any] = ()
    if isinstance(value, FunctionType):
        yield f"function {value.__module__}.{value.__qualname__}"
        inner = list_contents(value)
        if is_followed(value):
            yield from list_code(value.__code__)
            inner = [*inner, *list_globals(value, has_source=has_source)]
    elif isinstance(value, type):
        yield f"class {value.__module__}.{value.__qualname__}"
        if is_followed(value):
            names = [name for name in value.__dict__ if name not in UNCOUNTED]
            yield " ".join(names)
            inner = [*value.__bases__, *(vars(value)[name] for name in names)]
    elif isinstance(value, functools.partial):
        inner = (value.func, value.args, value.keywords)
    elif isinstance(value, MethodType):
        inner = (value.__func__, value.__self__)
    elif isinstance(value, staticmethod | classmethod):
        inner = (value.__func__,)
    elif isinstance(value, property):
        inner = (value.fget, value.fset)
    elif isinstance(value, Mapping):
        inner = [part for key, item in value.items() for part in (key, item)]
    elif isinstance(value, list | tuple):
        inner = value
    elif isinstance(value, set | frozenset):
        inner = sorted(value, key=repr)
    elif isinstance(value, BuiltinFunctionType | ModuleType):
        yield f"{type(value).__name__} {value.__name__}"
    elif hasattr(value, "tolist") and hasattr(value, "dtype"):  # an array or a tensor
        shape = tuple(value.shape)
        yield (
            f"{value.dtype} {shape} {value.tolist()!r}"
            if math.prod(shape) <= LARGEST_ARRAY
            else f"{value.dtype} {shape}"
        )
    elif is_dataclass(value):
        inner = (type(value), *(getattr(value, item.name, None) for item in fields(value)))
    else:
        inner = (type(value), *(vars(value).values() if is_outside(type(value).__module__) and hasattr(value, "__dict__") else ()))  # fmt: skip
    for part in inner:
        yield from list_loaded(part, objects_by_id, has_source=has_source)


def is_followed(code: Any) -> bool:
    """Whether code is hashed and not only named: that of installed packages is identified by its source, if at all."""
    if not is_outside(code.__module__):
        return False
    files = list_files(code)
    return not any(map(is_in_installed_folder, files)) if files else not is_installed(code.__module__)


def list_code(code: CodeType) -> Iterator[str]:
    """Text of a code object without line numbers, file names and docstring."""
    constants = list(code.co_consts)
    if sys.version_info < (3, 13):  # the first constant of a function that was not written as an expression
        has_docstring = bool(code.co_flags & inspect.CO_NEWLOCALS) and not code.co_name.startswith("<")
    else:
        has_docstring = bool(code.co_flags & 0x4000000)  # CO_HAS_DOCSTRING
    constants = constants[1:] if has_docstring else constants
    yield f"{code.co_name} {code.co_code.hex()} {code.co_names} {code.co_varnames} {code.co_freevars} {code.co_cellvars}"
    for constant in constants:
        if isinstance(constant, CodeType):
            yield from list_code(constant)
        elif isinstance(constant, frozenset):
            yield f"frozenset {sorted(map(repr, constant))}"
        else:
            yield repr(constant)


def list_globals(function: FunctionType, *, has_source: bool) -> Iterator[Any]:
    """Functions and classes that a function reads by global names or as attributes of modules; without source, values too."""
    names = [name for code in nested_codes(function.__code__) for name in code.co_names]
    for name in sorted(set(names)):
        value = function.__globals__.get(name)
        if isinstance(value, FunctionType | type | functools.partial) or (value is not None and not has_source):
            yield value
        if isinstance(value, ModuleType) and is_outside(value.__name__):
            contents = (getattr(value, attribute, None) for attribute in sorted(set(names)))
            yield from (item for item in contents if isinstance(item, FunctionType | type))


def nested_codes(code: CodeType) -> Iterator[CodeType]:
    """A code object and those of the functions that are defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested_codes(constant)
