"""Dataset readers, and `open_dataset`: the spec `kind:where?option=value` calls the reader `kind` with `where` and options."""

from __future__ import annotations

import inspect
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl

from vitreous.core.errors import Caveat, DataError, SpecError
from vitreous.core.registry import Registry
from vitreous.data.sample import Dataset

Read: TypeAlias = Callable[..., Dataset]
Recognise: TypeAlias = Callable[[Path], bool]
R = TypeVar("R", bound=Read)


@dataclass(frozen=True, slots=True)
class Reader:
    """How datasets of one kind are read; see `reader`."""

    read: Read
    recognises: Recognise | None = None


READERS: Registry[Reader] = Registry("dataset", "vitreous.data")
WORDS = {"true": True, "false": False, "none": None}


def reader(name: str, *, recognises: Recognise | None = None) -> Callable[[R], R]:
    """Decorator that registers a dataset reader.

    The decorated function takes the text after the colon of a spec, and options by name, and returns a `Dataset`.

    Parameters
    ----------
    name
        Kind of dataset, as written before the colon of a spec.
    recognises
        Whether a path without a kind is a dataset of this kind. Readers of plugins are tried before those of this
        package, and each group in the order of their names. None: the kind has to be named.

    Returns
    -------
    Callable
        Decorator that returns the function.

    Raises
    ------
    SpecError
        If the name is already registered.

    Examples
    --------
    >>> from vitreous.data import Album, Sample, open_dataset, reader
    >>> from PIL import Image
    >>> @reader("greys")
    ... def greys(place, count: int = 4):
    ...     '''Images of one grey value each.'''
    ...     keys = [f"grey {value}" for value in range(count)]
    ...     return Album("greys", keys, lambda index: Sample(keys[index], Image.new("RGB", (8, 8), (index,) * 3)))
    >>> len(open_dataset("greys:?count=3"))
    3
    """

    def add(function: R) -> R:
        READERS.add(name, Reader(function, recognises), f"{function.__module__}.{function.__qualname__}")
        return function

    return add


def contains(*names: str) -> Recognise:
    """Return a test whether a folder contains one of these names or glob patterns."""
    return lambda path: any(next(path.glob(name), None) is not None for name in names)


class UnlabelledImagesError(DataError):
    """A flat folder of images without a label file: it can be read as images, not as ImageNet's validation set."""

    def __init__(self, message: str, folder: Path = Path()) -> None:  # unpickling passes the message only
        super().__init__(message)
        self.folder = folder


def open_dataset(spec: str | Path, **options: Any) -> Dataset:
    """Open the dataset that a spec names.

    Parameters
    ----------
    spec
        `kind:where?option=value`, or a bare path whose kind is recognised from its content. A bare path to unlabelled
        images that are named like ImageNet's is read as a plain folder, with a `Caveat`; `imagenet-val:path` raises an
        error instead.
    **options
        Options of the reader; they take precedence over those in the spec.

    Returns
    -------
    Dataset
        The dataset; images are read when they are accessed.

    Raises
    ------
    SpecError
        If no dataset is named, or an option is unknown or of the wrong type.
    DataError
        If there is no dataset at the path, or it does not have the expected layout.

    Examples
    --------
    >>> from vitreous.data import open_dataset
    >>> dataset = open_dataset("scenes:part?count=3", seed=1)
    >>> len(dataset), dataset[0].image.size
    (3, (112, 112))
    """
    kind, place, spec_options = split_spec(str(spec))
    if not kind and not place:
        raise SpecError(f"no dataset is named; give a path, or one of {list_kinds()} with where it lies")
    if kind == "assets":
        kind, place = "", str(expand_path(f"assets:{place}"))
    name = kind or recognise(expand_path(place))
    read = READERS[name].read
    reader_options = check_options(name, read, spec_options, options)
    try:
        return read(place, **reader_options)
    except UnlabelledImagesError as problem:
        if kind or reader_options:
            raise
        warnings.warn(
            f"'{place}' has files named as ImageNet's and no label file, so it is read as a plain folder of images; "
            f"to read it as ImageNet's validation set, add a label file and write imagenet-val:{place} "
            f"(--data imagenet-val:{place} in `vitreous bench`)",
            Caveat,
            stacklevel=2,
        )
        return READERS["folder"].read(problem.folder)


def recognise(path: Path) -> str:
    """Kind of the dataset at a path, from its name and content; "folder" if no other kind fits."""
    for kind in sorted(READERS, key=lambda kind: (READERS.owner(kind).startswith("vitreous."), kind)):
        recognises = READERS[kind].recognises
        if recognises is not None and recognises(path):
            return kind
    if not path.exists():
        raise DataError(f"there is no dataset at '{path}'; give an existing path, or a kind before it: {list_kinds()}")
    if not path.is_dir():
        raise DataError(f"'{path}' is no dataset of a known layout; put its kind before it: {list_kinds()}")
    return "folder"


def list_kinds() -> str:
    """Known kinds, for error messages."""
    return ", ".join(f"{kind}:" for kind in sorted(READERS))


# ── specs ────────────────────────────────────────────────────────────────────────────────────────


def split_spec(spec: str) -> tuple[str, str, dict[str, str]]:
    """Kind (empty for a bare path), place and options of a spec, all as text."""
    kind, colon, remainder = spec.partition(":")
    if not colon or not re.fullmatch(r"[a-z][a-z0-9-]+", kind):  # a single letter is a drive of Windows
        kind, remainder = "", spec
    place, mark, query = remainder.rpartition("?")
    if mark and re.fullmatch(r"[a-z_]+=[^&=]*(&[a-z_]+=[^&=]*)*", query):
        return kind, place, dict(parse_qsl(query, keep_blank_values=True))
    return kind, remainder, {}


def parse_value(text: str) -> Any:
    """Parse an option: an int, float, True, False or None if the text is one, else the text itself."""
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def check_options(name: str, read: Read, texts: Mapping[str, str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Merge and check the options of a reader.

    Parameters
    ----------
    name
        Name of the reader.
    read
        The reader, whose signature and type hints are checked.
    texts
        Options of a spec, as text.
    options
        Options given in Python; they take precedence.

    Raises
    ------
    SpecError
        If the reader has no such option, or the value is not of its type.
    """
    parameters = list(inspect.signature(read).parameters.values())
    types = get_type_hints(read)
    option_names = [parameter.name for parameter in parameters[1:] if parameter.kind is not parameter.VAR_KEYWORD]
    open_ended = len(option_names) < len(parameters) - 1
    merged = {key: parse_value(text) for key, text in texts.items()} | dict(options)
    for key, value in merged.items():
        if key not in option_names and not open_ended:
            near = get_close_matches(key, option_names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(option_names) or 'none'}"
            raise SpecError(f"dataset {name!r} has no option {key!r}; {hint}")
        if matches_hint(value, types.get(key, Any)):
            continue
        if key in options or not matches_hint(texts[key], types[key]):
            if words := list_literal_values(types[key]):
                check_choice(key, value, words)
            expected = types[key].__name__ if isinstance(types[key], type) else types[key]
            raise SpecError(f"dataset {name!r} cannot take {key}={value!r}; expected {expected}")
        merged[key] = texts[key]  # text that looks like a number, such as 007, for an option of type str
    return merged


def matches_hint(value: Any, hint: Any) -> bool:
    """Whether a value is of a type hint: a class, a union, or one of the values of a Literal."""
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_args(hint):
        return any(matches_hint(value, argument) for argument in get_args(hint))
    if hint in (int, float):
        return isinstance(value, (int, hint)) and not isinstance(value, bool)
    return hint is Any or not isinstance(hint, type) or isinstance(value, hint)


def list_literal_values(hint: Any) -> tuple[Any, ...]:
    """Values of all Literals in a type hint."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    return tuple(word for argument in get_args(hint) for word in list_literal_values(argument))


# ── for readers ──────────────────────────────────────────────────────────────────────────────────


def check_choice(name: str, value: Any, allowed: Sequence[Any]) -> None:
    """Raise `SpecError` unless `value` is one of `allowed`."""
    if value not in allowed:
        raise SpecError(f"{name}={value!r}; known: {', '.join(map(repr, allowed))}")


def check_share(name: str, value: float) -> None:
    """Raise `SpecError` unless `value` is from 0 to 1."""
    if not 0 <= value <= 1:
        raise SpecError(f"{name}={value}; a share from 0 to 1 would work (0.05 is 5 %)")


def expand_path(place: str | Path) -> Path:
    """Path with `~` and the prefix `assets:` (the folder in the variable VITREOUS_ASSETS) expanded."""
    text = str(place)
    if not text.startswith("assets:"):
        return Path(text).expanduser()
    root = os.environ.get("VITREOUS_ASSETS")
    if not root:
        raise DataError(
            f"'{text}' lies in the folder that the environment variable VITREOUS_ASSETS names; it is not set"
        )
    return Path(root).expanduser() / text.removeprefix("assets:")


def require_folder(place: str | Path, layout: str, inside: str = ".") -> Path:
    """Path of an existing folder, or of its subfolder `inside` if it has that.

    Otherwise raise `DataError`, with `layout` as the description of what is expected.
    """
    path = expand_path(place)
    if not path.is_dir():
        problem = "is a file, not a folder" if path.exists() else "does not exist"
        raise DataError(f"'{path}' {problem}; expected {layout}")
    return path / inside if (path / inside).is_dir() else path


def import_package(package: str, subject: str) -> Any:
    """Import an optional package; if it is missing, raise `DataError` that says how to install it."""
    try:
        return import_module(package)
    except ImportError:
        raise DataError(
            f"{subject} needs the package {package.split('.', maxsplit=1)[0]}; pip install 'vitreous[data]' brings it"
        ) from None
