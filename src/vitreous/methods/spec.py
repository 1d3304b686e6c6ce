"""The grammar of methods: `name[(options)][@linearisation[(options)]][+fold[(options)]]`, case-insensitive."""

from __future__ import annotations

import ast
from difflib import get_close_matches
from typing import Any

from vitreous.capture.linearise import linearisation
from vitreous.core.errors import SpecError
from vitreous.methods.fold import FOLDS
from vitreous.methods.method import METHODS, SPELLINGS, Method


def resolve(spec: str | Method, **options: Any) -> Method:
    """`"decompx+skipplus"` → `skipplus(decompx)`; `"genatt@libra+plus"`, `"tis(masks=256)"`, `"GradCAM++"`."""
    if isinstance(spec, Method):
        return spec.with_options(**options) if options else spec
    if not isinstance(spec, str):
        raise SpecError(f"a method is a spec such as 'decompx+skipplus', not {type(spec).__name__!r}")
    from vitreous.methods import load_all

    load_all()
    text = unspaced(spec)
    name, rest = take_name(text)
    found = METHODS.find(name)
    if found is None:  # a spelling that stands for a whole spec
        found = resolve(SPELLINGS[name])
    given, rest = take_options(rest, text)
    found = found.with_options(**given)
    if rest.startswith("@"):
        mode, rest = take_word(rest[1:])
        changes, rest = take_options(rest, text)
        point = linearisation(mode, **changes)
        inner = ", ".join(f"{key}={value!r}" for key, value in changes.items())
        found = found.linearised(f"{mode}({inner})" if inner else mode, point)
    if rest.startswith("+"):
        word, rest = take_word(rest[1:])
        if not word:
            raise SpecError(f"a fold is missing behind '+' in {text!r}; known: {', '.join(sorted(FOLDS))}")
        chosen = FOLDS[word]
        changes, rest = take_options(rest, text)
        if name in SPELLINGS and "+" in SPELLINGS[name]:
            raise SpecError(
                f"{name!r} is {SPELLINGS[name]!r} and has its fold already; write {SPELLINGS[name].split('+')[0]}+{word}"
            )
        found = found.folded(chosen.with_options(**changes))
    if twice := sorted(given.keys() & options.keys()):
        raise SpecError(f"option {twice[0]!r} of {text!r} is given twice")
    found = found.with_options(**options) if options else found
    if rest.startswith("+"):
        raise SpecError(f"{text!r} has more than one fold; at most one is possible")
    if rest:
        raise SpecError(
            f"{text!r} is not understood from {rest!r} on; a spec is name(options)@linearisation(options)+fold(options)"
        )
    return found


def unspaced(spec: str) -> str:
    """Blanks around names, '@' and '+' say nothing; those inside options stay."""
    depth, kept = 0, []
    for char in spec.strip():
        depth += (char == "(") - (char == ")")
        if depth or not char.isspace():
            kept.append(char)
    return "".join(kept)


def take_name(text: str) -> tuple[str, str]:
    """The longest known name that `text` begins with, so that 'GradCAM++' is a name and 'gradcam+plus' a fold."""
    METHODS.load_plugins()
    lowered = text.lower()
    names = sorted([*METHODS, *SPELLINGS], key=len, reverse=True)
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
        f"no method {word!r}; " + (f"did you mean {near[0]!r}?" if near else "`vitreous methods` lists them")
    )


def take_word(text: str) -> tuple[str, str]:
    end = next((i for i, c in enumerate(text) if c in "(@+"), len(text))
    return text[:end].strip().lower(), text[end:]


def take_options(text: str, spec: str) -> tuple[dict[str, Any], str]:
    """Options in parentheses, as Python literals."""
    if not text.startswith("("):
        return {}, text
    end, depth, quote = 0, 0, ""
    for end, char in enumerate(text):  # noqa: B007 - read after the loop
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if depth == 0:
                break
    else:
        raise SpecError(f"a parenthesis in {spec!r} is not closed")
    inside, rest = text[1:end], text[end + 1 :]
    try:
        call = ast.parse(f"f({inside})", mode="eval").body
        assert isinstance(call, ast.Call)
        if call.args or any(k.arg is None for k in call.keywords):
            raise SpecError(f"options are written name=value; got ({inside}) in {spec!r}")
        names = [str(k.arg) for k in call.keywords]
        if len(set(names)) < len(names):
            raise SpecError(f"an option is given twice in ({inside}) of {spec!r}")
        return {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}, rest
    except (SyntaxError, ValueError, AssertionError):
        raise SpecError(f"options must be Python literals, name=value; got ({inside}) in {spec!r}") from None
