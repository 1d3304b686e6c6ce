"""Parser of method specs: `name[(options)][@linearisation[(options)]][+fold[(options)]]`, case-insensitive."""

from __future__ import annotations

import ast
import re
from difflib import get_close_matches
from typing import Any

from vitreous.capture.linearise import linearisation
from vitreous.core.errors import SpecError, VitreousError
from vitreous.core.messages import LONGEST, shorten_repr
from vitreous.methods import folds  # noqa: F401 - registers the folds
from vitreous.methods.fold import FOLDS
from vitreous.methods.method import METHODS, SPEC_ALIASES, Method
from vitreous.methods.options import write_options

LONGEST_SPEC = 4096  # characters
ESCAPES = "\\'\"ntrxuU"  # escapes that repr writes; Python only warns about unknown ones


def resolve(spec: str | Method, /, **options: Any) -> Method:
    """Make a `Method` of a spec such as "decompx+skipplus", "genatt@libra+plus", "tis(masks=256)" or "GradCAM++".

    Parameters
    ----------
    spec
        `name[(options)][@linearisation[(options)]][+fold[(options)]]`, with options as Python literals; names are
        case-insensitive and can be aliases. A `Method` is used as it is.
    **options
        Further options of the method.

    Returns
    -------
    Method
        The method with its options, linearisation and fold.

    Raises
    ------
    SpecError
        If the spec cannot be parsed, a name or option does not exist, a value does not fit, an option is given twice,
        or the method cannot be combined with the linearisation or fold.

    Examples
    --------
    >>> import vitreous
    >>> vitreous.resolve("GradCAM").name
    'gradcam'
    >>> vitreous.resolve("tis", masks=256).spec
    'tis(masks=256)'
    """
    if isinstance(spec, Method):
        return spec.with_options(**options) if options else spec
    if not isinstance(spec, str):
        raise SpecError(f"a method is a spec such as 'decompx+skipplus', not {type(spec).__name__!r}")
    text = remove_spaces(spec)
    name, rest = take_name(text)
    resolved = METHODS.find(name)
    if resolved is None:  # an alias of a spec
        resolved = resolve(SPEC_ALIASES[name])
    method_options, rest = take_options(rest, text)
    resolved = resolved.with_options(**method_options)
    if rest.startswith("@"):
        mode, rest = take_word(rest[1:])
        changes, rest = take_options(rest, text)
        point = linearisation(mode, **changes)
        resolved = resolved.with_linearisation(mode + write_options(changes), point)
    if rest.startswith("+"):
        word, rest = take_word(rest[1:])
        if not word:
            raise SpecError(f"a fold is missing behind '+' in {shorten_repr(text)}; known: {', '.join(sorted(FOLDS))}")
        chosen = FOLDS[word]
        changes, rest = take_options(rest, text)
        if name in SPEC_ALIASES and "+" in SPEC_ALIASES[name]:
            raise SpecError(
                f"{name!r} is {SPEC_ALIASES[name]!r} and has its fold already; write {SPEC_ALIASES[name].split('+')[0]}+{word}"
            )
        resolved = resolved.with_fold(chosen.with_options(**changes))
    if twice := sorted(method_options.keys() & options.keys()):
        raise SpecError(f"option {twice[0]!r} of {shorten_repr(text)} is given twice")
    resolved = resolved.with_options(**options) if options else resolved
    if rest.startswith("+"):
        raise SpecError(f"{shorten_repr(text)} has more than one fold; at most one is possible")
    if rest:
        raise SpecError(
            f"{shorten_repr(text)} is not understood from {shorten_repr(rest)} on; a spec is name(options)@linearisation(options)+fold(options)"
        )
    return resolved


def depends_on_class(method: str) -> bool:
    """Whether the maps of a spec depend on the class; False only if a known method gives every class the same map."""
    try:
        return resolve(method).class_specific
    except VitreousError:  # not a registered method
        return True


def remove_spaces(spec: str) -> str:
    """The spec without white space outside of parentheses."""
    if len(spec) > LONGEST_SPEC:
        raise SpecError(f"a spec has at most {LONGEST_SPEC} characters; {shorten_repr(spec)} has {len(spec)}")
    depth, characters = 0, []
    for char in spec.strip():
        depth += (char == "(") - (char == ")")
        if depth or not char.isspace():
            characters.append(char)
    return "".join(characters)


def take_name(text: str) -> tuple[str, str]:
    """Longest known name at the start of `text` ('GradCAM++' is a name, 'gradcam+plus' has a fold), and the rest."""
    lowered = text.lower()
    names = sorted([*METHODS, *SPEC_ALIASES], key=len, reverse=True)
    for name in names:
        if lowered.startswith(name) and (len(lowered) == len(name) or lowered[len(name)] in "(@+"):
            return name, text[len(name) :]
    word = take_word(text)[0] or text
    if word.lower() in ("libra", "libragrad", "conservative", "plain", "linear"):
        raise SpecError(f"{word!r} is a linearisation, not a method; write 'ixg@{word}' or 'fullgrad@{word}+plus'")
    if word.lower() in FOLDS:
        raise SpecError(f"{word!r} is a fold, not a method; write 'decompx+{word}'")
    near = get_close_matches(word.lower(), names, n=1)
    raise SpecError(
        f"no method {shorten_repr(word)}; "
        + (f"did you mean {near[0]!r}?" if near else "`vitreous methods` lists them")
    )


def take_word(text: str) -> tuple[str, str]:
    """The text before the first '(', '@' or '+', in lower case, and the rest."""
    end = next((i for i, c in enumerate(text) if c in "(@+"), len(text))
    return text[:end].strip().lower(), text[end:]


def take_options(text: str, spec: str) -> tuple[dict[str, Any], str]:
    """Parse options in parentheses at the start of `text` as Python literals; return them and the rest."""
    if not text.startswith("("):
        return {}, text
    end = find_closing(text)
    if end is None:
        raise SpecError(f"a parenthesis in {shorten_repr(spec)} is not closed")
    inside, rest = text[1:end], text[end + 1 :]
    try:
        if text[end] != ")" or any(escape not in ESCAPES for escape in re.findall(r"\\(.)", inside, re.DOTALL)):
            raise ValueError(inside)
        call = ast.parse(f"f({inside})", mode="eval").body
        assert isinstance(call, ast.Call)
        if call.args or any(k.arg is None for k in call.keywords):
            raise SpecError(f"options are written name=value; got ({shorten_text(inside)}) in {shorten_repr(spec)}")
        names = [str(k.arg) for k in call.keywords]
        if len(set(names)) < len(names):
            raise SpecError(f"an option is given twice in ({shorten_text(inside)}) of {shorten_repr(spec)}")
        return {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}, rest
    except (SyntaxError, ValueError, TypeError, AssertionError, MemoryError, RecursionError):
        raise SpecError(
            f"options must be Python literals, name=value; got ({shorten_text(inside)}) in {shorten_repr(spec)}"
        ) from None


def find_closing(text: str) -> int | None:
    """Index of the bracket that closes the one at the start of `text`, or None; brackets in strings are ignored."""
    depth, quote, escaped = 0, "", False
    for index, char in enumerate(text):
        if quote:
            quote = "" if char == quote and not escaped else quote
            escaped = char == "\\" and not escaped
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if depth == 0:
                return index
    return None


def shorten_text(text: str) -> str:
    """The text itself if it is printable and short, else its shortened repr."""
    return text if text.isprintable() and len(text) < LONGEST else shorten_repr(text)
