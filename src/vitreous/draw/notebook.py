"""Attributions in notebooks: a few rows as self-contained HTML."""

from __future__ import annotations

from base64 import b64encode
from html import escape
from io import BytesIO

from PIL import Image

from vitreous.draw.overlay import overlay_image
from vitreous.draw.scale import Scale, scale_of
from vitreous.draw.words import class_name, label, percent, probability, remarks, value, written_value
from vitreous.methods.attribution import Attribution

ROWS, SIDE = 4, 300  # rows shown, and the longest side of each


def html(attribution: Attribution, *, limit: int = ROWS) -> str:
    """The first rows with class, probability and scale; readable on light and dark pages."""
    cards = "".join(card(attribution[row]) for row in range(min(len(attribution), limit)))
    model = str(attribution.provenance.get("model", ""))
    more = len(attribution) - limit
    rest = (
        f"<p style='margin:.3em 0;opacity:.7'>and {more} more row{'s' * (more > 1)}; .plot() shows them</p>"
        if more > 0
        else ""
    )
    return (
        "<div style='font-family:sans-serif;font-size:13px;line-height:1.4'>"
        f"<p style='margin:.3em 0'><b>{escape(attribution.method)}</b> <span style='opacity:.7'>{escape(model)}</span></p>"
        f"<div style='display:flex;flex-wrap:wrap;gap:14px'>{cards}</div>{rest}</div>"
    )


def card(one: Attribution) -> str:
    scale = scale_of(one)
    chance, number, said = probability(one), value(one), remarks(one)
    name = escape(class_name(one))
    caption = f" = {written_value(number)}" if number is not None else "" if chance is None else f" {percent(chance)}"
    return (
        f"<figure style='margin:0;max-width:{SIDE}px'>"
        f"<figcaption><b>{name}</b>{caption}"
        f"{f' <i>{escape(said)}</i>' if said else ''}</figcaption>"
        f"<img alt='{escape(one.method)} for {name}' style='max-width:100%;display:block' src='{address(overlay_image(one, scale=scale, longest=2 * SIDE))}'>"
        f"{bar(scale)}<div style='text-align:center;font-size:11px;opacity:.7'>{escape(label(one, scale))}</div></figure>"
    )


def bar(scale: Scale) -> str:
    """The colour scale as a gradient with its numbers."""
    stops = ",".join("#" + bytes(round(255 * c) for c in colour).hex() for colour in scale.ramp(steps=9).tolist())
    numbers = "".join(f"<span>{scale.written(tick)}</span>" for tick in scale.ticks)
    return (
        f"<div style='height:8px;margin-top:5px;background:linear-gradient(to right,{stops})'></div>"
        f"<div style='display:flex;justify-content:space-between;font-size:11px'>{numbers}</div>"
    )


def address(picture: Image.Image) -> str:
    """A picture as a data address."""
    picture.thumbnail((SIDE, SIDE))
    stream = BytesIO()
    picture.save(stream, "PNG", optimize=True)
    return f"data:image/png;base64,{b64encode(stream.getvalue()).decode()}"
