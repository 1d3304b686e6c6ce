"""The demo: explain pictures whose evidence is known, score the maps against it, and show both on one page."""

from __future__ import annotations

from vitreous.demo.page import page
from vitreous.demo.show import CHAPTERS, METHODS, Chapter, Line, Score, run

__all__ = ["CHAPTERS", "METHODS", "Chapter", "Line", "Score", "page", "run"]
