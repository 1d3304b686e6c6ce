"""Attributions as figures: laid over the image, side by side, and in notebooks.

`scale` maps scores to colours, `overlay` lays colours over an image, `figure_layout` places text and images, `captions`
words them, `pages` draws figures and sheets, `strips` a method layer by layer, `film` clips, and `notebook` writes HTML.
"""

from __future__ import annotations

from vitreous.draw.film import film_strip, save_animation
from vitreous.draw.notebook import html
from vitreous.draw.overlay import overlay_image
from vitreous.draw.pages import figure, sheet
from vitreous.draw.scale import Scale, scale_of
from vitreous.draw.strips import strips

__all__ = ["Scale", "figure", "film_strip", "html", "overlay_image", "save_animation", "scale_of", "sheet", "strips"]


def __dir__() -> list[str]:
    return sorted(__all__)
