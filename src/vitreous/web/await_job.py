"""Waiting for the worker while the client is connected, no longer than a request may take."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request
from starlette.exceptions import HTTPException

from vitreous.core.errors import VitreousError
from vitreous.web.schemas import Error
from vitreous.web.service import Service
from vitreous.web.worker import QueueFull, Work, WouldExceedLimit, describe_call

T = TypeVar("T")
P = TypeVar("P")
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


@dataclass(frozen=True, slots=True)
class Caller:
    """A client that waits for what the worker computes, and the service that computes it."""

    request: Request
    service: Service

    async def compute(
        self, function: Callable[..., T], *arguments: Any, version: Hashable = None, expensive: bool = False
    ) -> T:
        """Return `function(*arguments)` or the cached result of an equal call; its arguments can be hashed.

        Results of another `version` are not used; what is expensive is computed after what is not. Raises as `await_job`
        does.
        """
        return await self.await_job(*describe_call(function, *arguments, version=version), None, expensive=expensive)

    async def compute_in_batch(
        self, work: Callable[[Sequence[P]], Sequence[T]], payload: P, *batch: Hashable, expensive: bool = False
    ) -> T:
        """Return the result of one payload, computed with other payloads of an equal `batch`; alone if it is empty."""
        key = (work.__qualname__, payload)
        batch_key = (work.__qualname__, *batch) if batch else None
        return await self.await_job(key, work, payload, batch_key, expensive=expensive)

    async def await_job(
        self, key: Hashable, work: Work, payload: Any, batch_key: Hashable = None, *, expensive: bool = False
    ) -> Any:
        """Return the worker's result for `key`, from the cache where it is known.

        Raises
        ------
        HTTPException
            429 if the queue is full, 504 after the time limit or as soon as progress shows that it will be exceeded, 499 when
            the client disconnects, 500 for unexpected errors.
        VitreousError
            What the work raised on purpose; the application answers it with 404 or 422.
        """
        worker, seconds = self.service.worker, self.service.settings.seconds
        end = time.monotonic() + seconds
        try:
            client = self.request.client.host if self.request.client else None
            together = key if batch_key is None else batch_key
            job = worker.submit(key, together, work, payload, end, client=client, expensive=expensive)
        except QueueFull as problem:
            raise HTTPException(429, f"{problem}; try again in a moment") from None
        result = asyncio.wrap_future(job.result)
        # avoids "exception never retrieved" where the client leaves
        result.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            while not result.done():
                left = end - time.monotonic()
                if left <= 0:
                    raise HTTPException(504, f"that took more than {seconds:g} seconds and was stopped; {WAYS_OUT}")
                if await self.request.is_disconnected():
                    raise HTTPException(CLIENT_LEFT, "the client has disconnected")
                await asyncio.wait({result}, timeout=min(left, POLL_SECONDS))
        finally:
            if not result.done():
                worker.leave(job)
        try:
            return result.result()
        except asyncio.CancelledError:
            raise HTTPException(500, "the playground is closing") from None
        except VitreousError:
            raise
        except WouldExceedLimit as problem:
            left = max(end - time.monotonic(), 0)
            sentence = (
                f"that needs about {problem.seconds:.0f} s more, and {left:.0f} of the {seconds:g} s that a request may take "
                f"are left; it was stopped after {problem.done:,} of {problem.total:,} passes; {WAYS_OUT}"
            )
            raise HTTPException(504, sentence) from None
        except Exception as problem:
            log.exception("a request failed")
            sentence = f"the work failed unexpectedly ({type(problem).__name__}); the server's log has the details"
            raise HTTPException(500, sentence) from None

    async def read_body(self) -> bytes:
        """Return the request body (its size is limited by the guard), waiting no longer than a request may take."""
        seconds = self.service.settings.seconds
        try:
            async with asyncio.timeout(seconds):
                return await self.request.body()
        except TimeoutError:
            raise HTTPException(504, f"the image took more than {seconds:g} seconds to arrive") from None


async def identify_caller(request: Request) -> Caller:
    return Caller(request, request.app.state.service)


Calling = Annotated[Caller, Depends(identify_caller)]  # a parameter of endpoints
