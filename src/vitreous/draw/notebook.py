"""Attributions in notebooks: a few rows as self-contained HTML."""

from __future__ import annotations

from base64 import b64encode
from functools import lru_cache
from io import BytesIO
from typing import Any, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.colors import to_hex
from PIL import Image

from vitreous.draw.captions import class_name, describe_missing_image, describe_target, describe_weights, label, remarks
from vitreous.draw.film import film_image
from vitreous.draw.overlay import overlay_image
from vitreous.draw.scale import QUANTILE, Scale, choose_scales, describe_scales, group_rows
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
    scales = choose_scales(shown, group_rows(shown), QUANTILE)
    model = str(attribution.provenance.get("model", ""))
    about = [
        model,
        describe_weights(attribution),
        describe_scales(shown, True, 1),
        describe_missing_image(attribution),
    ]
    return render_template(
        "notebook.html",
        method=attribution.method,
        about=" · ".join(filter(None, about)),
        cards=[describe_row(shown[row], scale) for row, scale in enumerate(scales)],
        hidden=len(attribution) - limit,
    )


def describe_row(attribution: Attribution, scale: Scale) -> dict[str, Any]:
    """One row with its captions and its colour scale."""
    name, is_clip = class_name(attribution), isinstance(attribution.layout, ClipLayout)
    image = film_image(attribution, scale) if is_clip else overlay_image(attribution, scale=scale, longest=2 * SIDE)
    side = max(SIDE, image.width) if is_clip else SIDE
    image.thumbnail((side, side))
    return {
        "name": name,
        "target": describe_target(attribution).removeprefix(name),
        "remarks": remarks(attribution),
        "label": label(attribution, scale),
        "side": side,
        "source": to_data_url(image, "png", optimize=True),
        "colours": [to_hex(colour) for colour in scale.ramp(steps=9)],
        "ticks": [scale.written(tick) for tick in scale.ticks],
    }


@lru_cache(maxsize=1)
def load_templates() -> Environment:
    loader = PackageLoader("vitreous.draw")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)


def render_template(name: str, **values: Any) -> str:
    """Render a template of `draw/templates`; all values are escaped."""
    return load_templates().get_template(name).render(values)


def to_data_url(image: Image.Image, kind: Literal["png", "webp"], **options: Any) -> str:
    """An image as a data URL; `options` are those of its format in Pillow."""
    stream = BytesIO()
    image.save(stream, kind, **options)
    return f"data:image/{kind};base64,{b64encode(stream.getvalue()).decode()}"
