"""Progress of a run over images, for `vitreous bench` and `vitreous map`."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

MESSAGES = 100  # different error messages that are counted one by one


@dataclass(slots=True)
class RunProgress:
    """State of a run.

    Parameters
    ----------
    images
        Number of images; None if it is not known before they are read.
    done_images, known_images
        Images that are done, and those of them that were done before this run began.
    rows
        New rows.
    skipped
        Images that the dataset's protocol leaves out.
    failed
        Number of failures by error message.
    begun
        Start of the run on the monotonic clock.
    """

    images: int | None
    done_images: int = 0
    known_images: int = 0
    rows: int = 0
    skipped: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    begun: float = field(default_factory=time.monotonic)

    @property
    def images_per_second(self) -> float:
        return (self.done_images - self.known_images) / max(time.monotonic() - self.begun, 1e-9)

    @property
    def seconds_left(self) -> float:
        """Estimated remaining time; NaN if it is not known."""
        rate = self.images_per_second
        return (self.images - self.done_images) / rate if rate and self.images is not None else math.nan

    def add_failure(self, message: str, count: int = 1) -> None:
        """Count a failure; memory is bounded, whatever the number of broken images."""
        if message not in self.failed and len(self.failed) >= MESSAGES:
            message = "other errors"
        self.failed[message] = self.failed.get(message, 0) + count
