"""Numbers for what a person concluded: each is looked up in the results, and so is whether it says what the sentence says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Any

from study.effects import only
from study.names import MODELS
from study.pages import Results, fill
from study.sentences import amount, digits_of, number, ranked, verdict

SHORT: dict[str, Callable[[Quotes], str]] = {}  # on pages of the study
ELSEWHERE: dict[str, Callable[[Quotes], str]] = {}


@dataclass
class Quotes:
    """Looks numbers up for sentences; what contradicts them is in `wrong`."""

    results: Results
    wrong: list[str] = field(default_factory=list)

    def one(self, says: str, method: str, against: str, table: str, metric: str, model: str, **where: Any) -> str:
        """An effect of which the sentence says that it is "better", "worse" or "open"; "worse|open" is not better."""
        fields = {"metric": metric, "model": model, **where}
        rows = only(self.results.effects(table), method=method, against=against, **fields)
        if len(rows) != 1:
            self.wrong.append(f"{table} has {len(rows)} rows of {method} − {against} by {metric} on {model}")
            return "–"
        self.holds(verdict(rows[0]) in says.split("|"), f"{method} − {against} by {metric} on {model} is {says}")
        return amount(rows[0])

    def both(self, says: str, method: str, against: str, table: str, metric: str, **where: Any) -> str:
        """ViT-Tiny's / DeiT-Tiny's; two verdicts are given as "better/open"."""
        first, _, second = says.partition("/")
        words = dict(zip(MODELS, (first, second or first), strict=True))
        return " / ".join(self.one(words[model], method, against, table, metric, model, **where) for model in MODELS)

    def figure(self, method: str, table: str, metric: str, model: str, **where: Any) -> str:
        """A mean, without its interval."""
        rows = only(self.results.figures(table), method=method, metric=metric, model=model, **where)
        if len(rows) != 1:
            self.wrong.append(f"{table} has {len(rows)} rows of {method} by {metric} on {model}")
        return number(rows[0].mean, min(2, digits_of(metric))) if rows else "–"

    def figures(self, method: str, table: str, metric: str, **where: Any) -> str:
        return " / ".join(self.figure(method, table, metric, model, **where) for model in MODELS)

    def order(self, says: str, table: str, metric: str, truth: str, among: str = "all", **where: Any) -> str:
        """Kendall's τ, of which the sentence says that orders go "together", "apart", or that it is "open"."""
        rows = only(self.results.orders(table), metric=metric, truth=truth, among=among, **where)
        if len(rows) != 1 or isnan(rows[0].tau):
            self.wrong.append(f"{table} has no one order of {metric} and {truth} among {among}")
            return "–"
        relation = "together" if rows[0].tau_low > 0 else "apart" if rows[0].tau_high < 0 else "open"
        self.holds(relation in says.split("|"), f"{metric} and {truth} among {among} in {table} go {says}")
        return ranked(rows[0])

    def orders(self, says: str, table: str, metric: str, truth: str, **where: Any) -> str:
        return " / ".join(self.order(says, table, metric, truth, model=model, **where) for model in MODELS)

    def tally(self, pairs: Sequence[tuple[str, str]], table: str, metric: str, kind: str) -> str:
        """For how many pairs the interval says "better" or "worse"."""
        rows = {(row.model, row.method, row.against): row for row in only(self.results.effects(table), metric=metric)}
        own = [[rows[model, *pair] for pair in pairs if (model, *pair) in rows] for model in MODELS]
        return " / ".join(str([verdict(row) for row in effects].count(kind)) for effects in own)

    def holds(self, true: bool, words: str) -> None:
        """What a sentence takes for granted."""
        self.wrong += [] if true else [f"it is said that {words}"]


def short(page: str, where: dict[str, Callable[[Quotes], str]] = SHORT):
    """Register what was concluded on a page, and its slot PAGE-short."""

    def add(function: Callable[[Quotes], str]) -> Callable[[Quotes], str]:
        where[page] = function
        fill(f"{page}-short")(lambda results: function(Quotes(results)))
        return function

    return add


def points(*lines: str, models: bool = True) -> str:
    """A list under the word that every page begins with."""
    first = (
        "Two numbers are ViT-Tiny's / DeiT-Tiny's; brackets are 95 % intervals."
        if models
        else "Brackets are 95 % intervals."
    )
    return "\n".join([f"**In short.** {first}", "", *(f"- {line}" for line in lines)])


def contradictions(results: Results) -> list[str]:
    """What was concluded by hand and does not follow from the results."""
    sentences = []
    for page, function in (SHORT | ELSEWHERE).items():
        quotes = Quotes(results)
        function(quotes)
        sentences += [f"{page}: {words}, and the results say otherwise" for words in quotes.wrong]
    return sentences
