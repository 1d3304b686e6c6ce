"""The demo: explain images whose evidence is known, score the maps against it, and show both on one page."""

from __future__ import annotations

from vitreous.demo.chapters import CHAPTERS, METHODS, Chapter, ChapterResult, ExplainedClass, MethodScore, run
from vitreous.demo.page import page

__all__ = ["CHAPTERS", "METHODS", "Chapter", "ChapterResult", "ExplainedClass", "MethodScore", "page", "run"]
