"""Attributions as pictures: laid over the photograph, side by side, and in notebooks.

`scale` says which colour a score gets, `overlay` lays colours over a photograph, `board` is the page,
`pages` sets figures and sheets on it, `strips` a method from inside, `notebook` writes HTML.
"""

from __future__ import annotations

from vitreous.draw.notebook import html
from vitreous.draw.overlay import overlay_image
from vitreous.draw.pages import figure, sheet
from vitreous.draw.scale import Scale, scale_of
from vitreous.draw.strips import strips

__all__ = ["Scale", "figure", "html", "overlay_image", "scale_of", "sheet", "strips"]
