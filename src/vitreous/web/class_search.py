"""Class names that match or resemble what a user typed."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

MAX_MATCHES = 6
MIN_SIMILARITY = 0.6


def find_classes(names: Sequence[str], text: str) -> list[int]:
    """Return indices of up to six classes: equal names first, then names that contain the text, then similar ones.

    Parameters
    ----------
    names : sequence of str
        The class names of a model.
    text : str
        What a user typed.

    Examples
    --------
    >>> find_classes(["tabby cat", "tiger cat", "kite"], "cat")
    [0, 1]
    >>> find_classes(["tabby cat", "tiger cat", "kite"], "tigre cat")
    [1, 0]
    """
    query = " ".join(text.lower().split())
    if not query:
        return []
    similarity = {index: rate_similarity(name.lower(), query) for index, name in enumerate(names)}
    ranked = sorted(similarity, key=lambda index: (-similarity[index], index))
    return [index for index in ranked if similarity[index] >= MIN_SIMILARITY][:MAX_MATCHES]


def rate_similarity(name: str, text: str) -> float:
    """Return 2 for equal names, 1 to 2 for a name that contains the text, else the best match of the name or a word."""
    if name == text:
        return 2.0
    if text in name:
        return 1 + len(text) / len(name)
    matcher = SequenceMatcher(b=text)  # caches what it knows of its second sequence
    best = 0.0
    for part in {name, *name.replace("-", " ").replace(",", " ").split()}:
        matcher.set_seq1(part)
        if matcher.real_quick_ratio() > best and matcher.quick_ratio() > best:
            best = max(best, matcher.ratio())
    return best
