"""When a running computation will end, judged by its progress reports."""

from __future__ import annotations

from dataclasses import dataclass, field

MEASURED_SECONDS = 2.0  # of progress before a projection is trusted


class WouldExceedLimit(Exception):  # noqa: N818 - an expected condition, answered with 504
    """A computation was stopped because it could not have finished before its deadline."""

    def __init__(self, seconds: float, done: int, total: int) -> None:
        super().__init__(f"about {seconds:.0f} s more; stopped at {done} of {total}")
        self.seconds, self.done, self.total = seconds, done, total


@dataclass(slots=True)
class Projection:
    """Seconds that a computation which counts its pieces still needs.

    The speed is measured from the first report on, because what comes before it (loading, segmentation) is not
    proportional to the number of pieces. A computation may count several times from the beginning, so the result is a
    lower bound.
    """

    _first: tuple[float, int] | None = field(default=None, init=False)

    def seconds_left(self, done: int, total: int, now: float) -> float | None:
        """Seconds needed after a report at time `now`; None while too little was measured."""
        if self._first is None or done <= self._first[1]:  # the first report, or a new count
            self._first = now, done
            return None
        then, done_before = self._first
        if now - then < MEASURED_SECONDS:
            return None
        return (total - done) * (now - then) / (done - done_before)
