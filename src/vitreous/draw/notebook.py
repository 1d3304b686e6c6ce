"""Attributions in notebooks: a few rows as self-contained HTML."""

from __future__ import annotations

from base64 import b64encode
from html import escape
from io import BytesIO

from PIL import Image

from vitreous.draw.captions import class_name, describe_target, label, remarks
from vitreous.draw.film import film_image
from vitreous.draw.overlay import overlay_image
from vitreous.draw.pages import choose_scales, describe_scales, group_rows_by_image
from vitreous.draw.scale import QUANTILE, Scale
from vitreous.methods.attribution import Attribution
from vitreous.models.layout import ClipLayout

ROWS, SIDE = 4, 300  # rows shown, and the longest side of each in pixels


def html(attribution: Attribution, *, limit: int = ROWS) -> str:
    """Draw the first rows as HTML that needs no other file and is readable on light and dark pages.

    Parameters
    ----------
    attribution
        Maps to draw; all classes of an image have one colour scale.
    limit
        Most rows that are drawn.

    Returns
    -------
    str
        A `<div>` with method, model and one figure per row.

    Examples
    --------
    >>> import torch
    >>> from vitreous import Attribution, draw
    >>> from vitreous.models.vit import Layout
    >>> attribution = Attribution(torch.rand(2, 4), Layout((2, 2), (16, 16), 0), torch.tensor([3, 5]), "ixg")
    >>> draw.html(attribution).startswith("<div")
    True
    """
    shown = attribution[:limit]
    scales = choose_scales(shown, group_rows_by_image(shown), QUANTILE)
    cards = "".join(make_card(shown[row], scales[row]) for row in range(len(shown)))
    about = [str(attribution.provenance.get("model", "")), describe_scales(shown, True, 1)]
    hidden = len(attribution) - limit
    left_out = (
        f"<p style='margin:.3em 0;opacity:.7'>and {hidden} more row{'s' * (hidden > 1)}; .plot() shows them</p>"
        if hidden > 0
        else ""
    )
    return (
        "<div style='font-family:sans-serif;font-size:13px;line-height:1.4;overflow-wrap:anywhere'>"
        f"<p style='margin:.3em 0'><b>{escape(attribution.method)}</b> "
        f"<span style='opacity:.7'>{escape(' · '.join(filter(None, about)))}</span></p>"
        f"<div style='display:flex;flex-wrap:wrap;gap:14px'>{cards}</div>{left_out}</div>"
    )


def make_card(attribution: Attribution, scale: Scale) -> str:
    """One row with its captions and its colour scale."""
    name, target, notes = class_name(attribution), describe_target(attribution), remarks(attribution)
    is_clip = isinstance(attribution.layout, ClipLayout)
    image = film_image(attribution, scale) if is_clip else overlay_image(attribution, scale=scale, longest=2 * SIDE)
    side = max(SIDE, image.width) if is_clip else SIDE
    return (
        f"<figure style='margin:0;max-width:{side}px'>"
        f"<figcaption><b>{escape(name)}</b>{escape(target.removeprefix(name))}"
        f"{f' <i>{escape(notes)}</i>' if notes else ''}</figcaption>"
        f"<img alt='{escape(attribution.method)} for {escape(name)}' style='max-width:100%;display:block' src='{data_url(image, side)}'>"
        f"{draw_bar(scale)}"
        f"<div style='text-align:center;font-size:11px;opacity:.7'>{escape(label(attribution, scale))}</div></figure>"
    )


def draw_bar(scale: Scale) -> str:
    """The colour scale as a gradient with its numbers."""
    stops = ",".join("#" + bytes(round(255 * c) for c in colour).hex() for colour in scale.ramp(steps=9).tolist())
    numbers = "".join(f"<span>{scale.written(tick)}</span>" for tick in scale.ticks)
    return (
        f"<div style='height:8px;margin-top:5px;background:linear-gradient(to right,{stops})'></div>"
        f"<div style='display:flex;justify-content:space-between;font-size:11px'>{numbers}</div>"
    )


def data_url(image: Image.Image, side: int) -> str:
    """A reduced image as a data URL."""
    image.thumbnail((side, side))
    stream = BytesIO()
    image.save(stream, "PNG", optimize=True)
    return f"data:image/png;base64,{b64encode(stream.getvalue()).decode()}"
