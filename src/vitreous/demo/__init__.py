"""The demo: explain images whose evidence is known, score the maps against it, and show both on one page."""

from __future__ import annotations

from vitreous.demo.page import page
from vitreous.demo.sections import CHAPTERS, METHODS, Chapter, ChapterResult, ExplainedClass, MethodScore, run

__all__ = ["CHAPTERS", "METHODS", "Chapter", "ChapterResult", "ExplainedClass", "MethodScore", "page", "run"]
