"""Waiting for the worker while the client is connected, no longer than a request may take."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Hashable
from typing import Any

from fastapi import Request

from vitreous.core.errors import VitreousError
from vitreous.web.projection import WouldExceedLimit
from vitreous.web.schemas import Error
from vitreous.web.service import Service
from vitreous.web.worker import QueueFull, Work

log = logging.getLogger("vitreous.web")

POLL_SECONDS = 0.1  # between two checks of whether the client is still connected
WAYS_OUT = "ask for fewer samples, run it in Python, or start the server with a larger --seconds"
CLIENT_LEFT = 499  # nginx's code; no client receives it

ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": Error, "description": "Unreadable request, or an unknown Host"},
    403: {"model": Error, "description": "Request from another site's page"},
    404: {"model": Error, "description": "Unknown model or image"},
    413: {"model": Error, "description": "Body too large"},
    422: {"model": Error, "description": "Invalid parameter, method, class or image"},
    429: {"model": Error, "description": "The queue is full"},
    500: {"model": Error, "description": "Fault of the program"},
    504: {"model": Error, "description": "Time limit exceeded, or about to be; the computation was stopped"},
}


class RequestRefused(Exception):  # noqa: N818 - an expected condition with its own status
    """A status code and one sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


async def await_result(
    request: Request, key: Hashable, work: Work, payload: Any, batch_key: Hashable | None = None
) -> Any:
    """Return the worker's result for `key`, from the cache where it is known.

    Raises
    ------
    RequestRefused
        429 if the queue is full, 504 after the time limit or as soon as progress shows that it will be exceeded, 499 when
        the client disconnects, 500 for unexpected errors.
    VitreousError
        What the work raised on purpose; the application answers it with 404 or 422.
    """
    service: Service = request.app.state.service
    worker, seconds = service.worker, service.settings.seconds
    end = time.monotonic() + seconds
    try:
        job = worker.submit(key, batch_key if batch_key is not None else key, work, payload, end)
    except QueueFull:
        raise RequestRefused(429, f"{worker.waiting} requests wait already; try again in a moment") from None
    result = asyncio.wrap_future(job.result)
    result.add_done_callback(lambda done: done.cancelled() or done.exception())  # avoids "exception never retrieved"
    try:
        while not result.done():
            left = end - time.monotonic()
            if left <= 0:
                raise RequestRefused(504, f"that took more than {seconds:g} seconds and was stopped; {WAYS_OUT}")
            if await request.is_disconnected():
                raise RequestRefused(CLIENT_LEFT, "the client has disconnected")
            await asyncio.wait({result}, timeout=min(left, POLL_SECONDS))
    finally:
        if not result.done():
            worker.leave(job)
    try:
        return result.result()
    except asyncio.CancelledError:
        raise RequestRefused(500, "the playground is closing") from None
    except VitreousError:
        raise
    except WouldExceedLimit as problem:
        left = max(end - time.monotonic(), 0)
        sentence = (
            f"that needs about {problem.seconds:.0f} s more, and {left:.0f} of the {seconds:g} s that a request may take are "
            f"left; it was stopped after {problem.done:,} of {problem.total:,} passes; {WAYS_OUT}"
        )
        raise RequestRefused(504, sentence) from None
    except Exception as problem:
        log.exception("a request failed")
        sentence = f"the work failed unexpectedly ({type(problem).__name__}); the server's log has the details"
        raise RequestRefused(500, sentence) from None


async def read_body(request: Request, seconds: float | int) -> bytes:
    """Return the request body (its size is limited by the guard), waiting no longer than `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            return await request.body()
    except TimeoutError:
        raise RequestRefused(504, f"the image took more than {seconds:g} seconds to arrive") from None
