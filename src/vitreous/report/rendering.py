"""Jinja2 templates of the pages; all values that are not markup are escaped."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from vitreous import __version__
from vitreous.draw.captions import percent
from vitreous.report.formatting import format_code, make_breakable


@lru_cache(maxsize=1)
def load_environment() -> Environment:
    loaded = Environment(
        loader=PackageLoader("vitreous.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    loaded.filters |= {"code": format_code, "breakable": make_breakable, "percent": percent}
    loaded.globals["version"] = __version__
    return loaded


def render_page(template: str, **values: Any) -> str:
    """Render a template of `report/templates`."""
    return load_environment().get_template(template).render(values)
