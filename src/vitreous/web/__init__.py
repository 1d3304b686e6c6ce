"""The playground: a web page and the typed HTTP endpoints behind it. It loads nothing from other hosts.

Modules
-------
settings       limits and addresses, fixed when the server starts
guard          ASGI middleware: Host and Origin checks, body size, security headers
image_store    bundled scenes by name, uploads by hash
model_pool     the models on offer, loaded on first use
worker         one thread that runs models, with a bounded queue and a cache
budget         sample counts that fit the time limit, from a measured forward pass
service        what the worker computes, through `vitreous.front` and `vitreous.metrics`, as response types
exports        downloads: scores, and the program that reproduces the page
await_job      the client that waits for the worker while it is connected
schemas        request and response types
responses      parts of responses: numbers, classes, maps
routes         the endpoints
pairs          endpoints of the page of pairs
templates      the pages
static         their scripts and styles
"""

from __future__ import annotations

from vitreous.web.settings import Settings

__all__ = ["Settings"]
