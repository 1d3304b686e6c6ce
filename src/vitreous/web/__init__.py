"""The playground: one page, and the endpoints it speaks to. Nothing is fetched from anywhere, nothing is sent anywhere.

`settings` is what was allowed at start, `guard` what may come in, `pictures` and `roster` what may be asked about, `worker`
the one thread that runs models, `studio` what it computes, `routes` the typed endpoints, `static` the page.
"""

from __future__ import annotations

from vitreous.web.settings import Settings

__all__ = ["Settings"]
