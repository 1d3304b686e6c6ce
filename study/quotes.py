"""Numbers for conclusions that are written by hand: each is looked up in the results, and its claim is checked against them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Any

from study.effects import select_rows
from study.names import MODELS
from study.pages import Results, fill
from study.sentences import count_digits, format_effect, format_number, format_tau, judge

CONCLUSIONS: dict[str, Callable[[Quotes], str]] = {}  # of pages of the study
QUOTED_CONCLUSIONS: dict[str, Callable[[Quotes], str]] = {}  # of other pages


@dataclass
class Quotes:
    """Looks up numbers for sentences and collects claims that the results contradict in `errors`.

    `expected` is the verdict that the sentence states: "better", "worse" or "open" for an effect, and "together", "apart" or
    "open" for two orders; "worse|open" allows either. Methods for both models return "ViT-Tiny's / DeiT-Tiny's" numbers.
    Further keywords are fields of the row to look up.
    """

    results: Results
    errors: list[str] = field(default_factory=list)

    def format_effect(
        self, expected: str, method: str, against: str, table: str, metric: str, model: str, **fields: Any
    ) -> str:
        """An effect with its interval."""
        fields = {"metric": metric, "model": model, **fields}
        rows = select_rows(self.results.effects(table), method=method, against=against, **fields)
        if len(rows) != 1:
            self.errors.append(f"{table} has {len(rows)} rows of {method} − {against} by {metric} on {model}")
            return "–"
        self.require(
            judge(rows[0]) in expected.split("|"), f"{method} − {against} by {metric} on {model} is {expected}"
        )
        return format_effect(rows[0])

    def format_effects(self, expected: str, method: str, against: str, table: str, metric: str, **fields: Any) -> str:
        """Effects of both models; verdicts that differ are written as "better/open"."""
        first, _, second = expected.partition("/")
        verdicts = zip(MODELS, (first, second or first), strict=True)
        return " / ".join(
            self.format_effect(verdict, method, against, table, metric, model, **fields) for model, verdict in verdicts
        )

    def format_mean(self, method: str, table: str, metric: str, model: str, **fields: Any) -> str:
        """A mean without its interval."""
        rows = select_rows(self.results.figures(table), method=method, metric=metric, model=model, **fields)
        if len(rows) != 1:
            self.errors.append(f"{table} has {len(rows)} rows of {method} by {metric} on {model}")
        return format_number(rows[0].mean, min(2, count_digits(metric))) if rows else "–"

    def format_means(self, method: str, table: str, metric: str, **fields: Any) -> str:
        """Means of both models."""
        return " / ".join(self.format_mean(method, table, metric, model, **fields) for model in MODELS)

    def format_order(
        self, expected: str, table: str, metric: str, truth: str, among: str = "all", **fields: Any
    ) -> str:
        """Kendall's τ of two orders of methods with its interval."""
        rows = select_rows(self.results.orders(table), metric=metric, truth=truth, among=among, **fields)
        if len(rows) != 1 or isnan(rows[0].tau):
            self.errors.append(f"{table} has no unique order of {metric} and {truth} among {among}")
            return "–"
        relation = "together" if rows[0].tau_low > 0 else "apart" if rows[0].tau_high < 0 else "open"
        self.require(relation in expected.split("|"), f"{metric} and {truth} among {among} in {table} go {expected}")
        return format_tau(rows[0])

    def format_orders(self, expected: str, table: str, metric: str, truth: str, **fields: Any) -> str:
        """Kendall's τ of both models."""
        return " / ".join(self.format_order(expected, table, metric, truth, model=model, **fields) for model in MODELS)

    def count_verdicts(self, pairs: Sequence[tuple[str, str]], table: str, metric: str, verdict: str) -> str:
        """Number of pairs with this verdict, for both models."""
        rows = {
            (row.model, row.method, row.against): row for row in select_rows(self.results.effects(table), metric=metric)
        }
        effects_by_model = [[rows[model, *pair] for pair in pairs if (model, *pair) in rows] for model in MODELS]
        return " / ".join(str([judge(row) for row in effects].count(verdict)) for effects in effects_by_model)

    def require(self, condition: bool, claim: str) -> None:
        """Record an error if the condition that a sentence assumes is false."""
        self.errors += [] if condition else [f"the page states that {claim}"]


def register_conclusion(page: str, registry: dict[str, Callable[[Quotes], str]] = CONCLUSIONS):
    """Register the function that writes the conclusions of a page, which fill its slot PAGE-short."""

    def add(function: Callable[[Quotes], str]) -> Callable[[Quotes], str]:
        registry[page] = function
        fill(f"{page}-short")(lambda results: function(Quotes(results)))
        return function

    return add


def format_list(*lines: str, models: bool = True) -> str:
    """The list "In short" of a page; with `models`, two numbers are those of the two models."""
    first = (
        "Two numbers are ViT-Tiny's / DeiT-Tiny's; brackets are 95 % intervals."
        if models
        else "Brackets are 95 % intervals."
    )
    return "\n".join([f"**In short.** {first}", "", *(f"- {line}" for line in lines)])


def find_contradictions(results: Results) -> list[str]:
    """Claims of conclusions that the results contradict."""
    sentences = []
    for page, function in (CONCLUSIONS | QUOTED_CONCLUSIONS).items():
        quotes = Quotes(results)
        function(quotes)
        sentences += [f"{page}: {error}, and the results contradict this" for error in quotes.errors]
    return sentences
