"""A measured row of the table: its values, its targets, and whether they are met."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from suite.case import Case
from suite.workload import Workload


@dataclass
class Row:
    """A ratio of two sides, or a single value if `unit` is given; `error` is the reason if there is none."""

    size: str
    group: str
    what: str
    against: str
    batch: int = 1
    dtype: str = "float32"
    pictures: tuple[float, float] = (1, 1)
    targets: dict[str, float] = field(default_factory=dict)  # at_most, at_least, smaller, agreement
    seconds: dict[str, list[float]] = field(default_factory=dict)  # ours, theirs: of one call, for every round
    peaks: dict[str, int] = field(default_factory=dict)  # bytes of one call
    ratio: float | None = None  # ours / theirs per image, median of the rounds; or the single value
    spread: tuple[float, float] | None = None  # least and largest of the rounds
    unit: str = ""
    agreement: float | None = None
    error: str | None = None
    note: str = ""

    @classmethod
    def from_case(cls, case: Case, workload: Workload) -> Row:
        limits = {key: getattr(case, key) for key in ("at_most", "at_least", "smaller", "agreement")}
        targets = {key: float(value) for key, value in limits.items() if value is not None}
        facts = (workload.size, case.group, case.what, case.against, workload.batch, workload.precision)
        return cls(*facts, pictures=case.pictures, targets=targets, note=case.note)

    def set_rounds(self, rounds: list[tuple[float, float]]) -> None:
        """Compute the ratio per image as the median of the ratios within rounds."""
        self.seconds = {"ours": [a for a, _ in rounds], "theirs": [b for _, b in rounds]}
        own, other = self.pictures
        ratios = [a / own / (b / other) for a, b in rounds if b > 0]
        if ratios:
            self.ratio, self.spread = statistics.median(ratios), (min(ratios), max(ratios))

    @property
    def smaller(self) -> float | None:
        """Peak memory per image of theirs divided by that of ours."""
        if not self.peaks.get("ours") or "theirs" not in self.peaks:
            return None
        own, other = self.pictures
        return (self.peaks["theirs"] / other) / (self.peaks["ours"] / own)

    def list_missed(self) -> list[str]:
        """Description of each target that is not met."""
        gain = None if not self.ratio else 1 / self.ratio
        sentences = []
        for key, target in self.targets.items():
            value = {"at_most": self.ratio, "at_least": gain, "smaller": self.smaller, "agreement": self.agreement}[key]
            if value is None or math.isnan(value):
                sentences.append(f"{WORDS[key]} is not defined")
            elif key == "at_most" and value > target:
                sentences.append(f"{format_number(value)} is {format_percent(value / target - 1)} over {target:g}")
            elif key != "at_most" and value < target:
                sentences.append(
                    f"{WORDS[key]} {format_number(value)} is {format_percent(1 - value / target)} short of {target:.3g}"
                )
        return sentences

    @property
    def verdict(self) -> str:
        if self.error is not None:
            return "failed"
        return "no target" if not self.targets else "missed" if self.list_missed() else "met"

    def to_record(self) -> dict[str, Any]:
        """All fields for JSON."""
        seconds = {side: [round(s, 6) for s in times] for side, times in self.seconds.items()}
        fields = asdict(self) | {"seconds": seconds, "smaller": self.smaller, "verdict": self.verdict}
        fields |= {"agreement": None if self.agreement != self.agreement else self.agreement}  # NaN is no JSON
        return fields | {"missed": [] if self.error is not None else self.list_missed()}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Row:
        row = cls(**{key: value for key, value in record.items() if key not in ("smaller", "verdict", "missed")})
        row.pictures = tuple(row.pictures)
        row.spread = None if row.spread is None else tuple(row.spread)
        return row

    @property
    def key(self) -> tuple[object, ...]:
        return self.size, self.group, self.what, self.against, self.note, self.batch, self.dtype


@dataclass(frozen=True)
class Figure:
    """A single value that is not measured yet."""

    group: str
    what: str
    against: str
    measure: Callable[[], Row]
    note: str = ""


WORDS = {"at_most": "the ratio", "at_least": "the gain", "smaller": "memory", "agreement": "agreement"}


def format_percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else f"{share:.1%}"


def format_number(value: float) -> str:
    """A number with three significant digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 10 else f"{value:.2f}"
