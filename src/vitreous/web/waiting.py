"""Waiting for the worker: as long as the client waits, and no longer than a request may take."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Hashable
from typing import Any

from fastapi import Request

from vitreous.core.errors import VitreousError
from vitreous.web.shapes import Error
from vitreous.web.studio import Studio
from vitreous.web.worker import Busy, Work

log = logging.getLogger("vitreous.web")

GLANCE = 0.1  # seconds between two looks at whether the client is still there
GONE = 499  # as nginx says it; nobody reads it

ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": Error, "description": "A request that cannot be read, or a Host that is not ours"},
    403: {"model": Error, "description": "A request from another site's page"},
    404: {"model": Error, "description": "A model or picture that is not here"},
    413: {"model": Error, "description": "More bytes than are taken"},
    422: {"model": Error, "description": "What was asked for does not exist or does not fit"},
    429: {"model": Error, "description": "Too many wait already"},
    500: {"model": Error, "description": "A fault of the program"},
    504: {"model": Error, "description": "It took too long, and was stopped"},
}


class Refused(Exception):  # noqa: N818 - an answer, not a fault
    """A status and one sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


async def answer(request: Request, key: Hashable, work: Work, payload: Any, alike: Hashable = None) -> Any:
    """What the worker finds; known answers come at once."""
    studio: Studio = request.app.state.studio
    worker, seconds = studio.worker, studio.settings.seconds
    try:
        job = worker.submit(key, alike if alike is not None else key, work, payload)
    except Busy:
        raise Refused(429, f"{worker.waiting} requests wait already; try again in a moment") from None
    found, end = asyncio.wrap_future(job.answer), time.monotonic() + seconds
    found.add_done_callback(lambda done: done.cancelled() or done.exception())  # also when nobody looks any more
    try:
        while not found.done():
            left = end - time.monotonic()
            if left <= 0:
                sentence = f"that took more than {seconds:g} seconds and was stopped; ask for less, or raise --seconds"
                raise Refused(504, sentence)
            if await request.is_disconnected():
                raise Refused(GONE, "the client has left")
            await asyncio.wait({found}, timeout=min(left, GLANCE))
    finally:
        if not found.done():
            worker.leave(job)
    try:
        return found.result()
    except asyncio.CancelledError:
        raise Refused(500, "the playground is closing") from None
    except VitreousError:
        raise
    except Exception as problem:
        log.exception("a request failed")
        said = f"the work failed unexpectedly ({type(problem).__name__}); the server's log has the details"
        raise Refused(500, said) from None


async def body_of(request: Request, seconds: float | int) -> bytes:
    """The body, counted by the guard as it comes, and not waited for without end."""
    try:
        async with asyncio.timeout(seconds):
            return await request.body()
    except TimeoutError:
        raise Refused(504, f"the picture took more than {seconds:g} seconds to arrive") from None
