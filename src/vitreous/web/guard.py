"""What may come in, and what every answer says: our name in Host, bodies of bounded size, no scripts but our own."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from vitreous.web.settings import Settings

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

BODY = 1 << 17  # bytes of a request that is not a picture
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
DEMO_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; frame-ancestors 'none'"
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


class TooLarge(Exception):  # noqa: N818 - an answer, not a fault
    """A body grew beyond what was allowed."""


class Guard:
    """Plain ASGI, so that a body is counted while it arrives and not when it is all here."""

    def __init__(self, app: Any, settings: Settings) -> None:
        self.app, self.settings = app, settings

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self.answer(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self.app(scope, receive, send)

    async def answer(self, scope: Any, receive: Receive, send: Send) -> None:
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        guarded = sender(send, DEMO_POLICY if scope["path"] == "/demo" else POLICY, fresh(scope["path"]))
        refusal = self.refusal(headers, scope["path"])
        if refusal is not None:
            await refuse(guarded, *refusal)
            return
        left, over, begun = self.limit(scope["path"]), False, False

        async def counted() -> Message:
            nonlocal left, over
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                over = True
                raise TooLarge
            return message

        async def told(message: Message) -> None:
            nonlocal begun
            if not over:  # whoever read the body makes a sentence of his own of it
                begun = True
                await guarded(message)

        with suppress(TooLarge):
            await self.app(scope, counted, told)
        if over and not begun:
            await refuse(guarded, 413, f"a request may have at most {self.limit(scope['path']):,} bytes")

    def refusal(self, headers: dict[str, str], path: str) -> tuple[int, str] | None:
        """Why a request is turned away before anybody reads it."""
        host, origin, length = headers.get("host", ""), headers.get("origin"), headers.get("content-length", "0")
        if not self.settings.answers_to(host):
            return 400, "this playground is not addressed by that Host; open the address that `vitreous serve` printed"
        if origin is not None and urlsplit_host(origin) != host.lower():
            return 403, "requests come from the playground's own page only"
        if not length.isascii() or not length.isdigit():
            return 400, "Content-Length must be a whole number"
        if int(length) > self.limit(path):
            return 413, f"a request may have at most {self.limit(path):,} bytes, not {int(length):,}"
        return None

    def limit(self, path: str) -> int:
        return self.settings.upload if path == "/api/pictures" else BODY


def urlsplit_host(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def fresh(path: str) -> str:
    """Pages are asked for anew each time; answers are nobody else's."""
    return "no-store" if path.startswith("/api/") else "no-cache"


def sender(send: Send, policy: str, cache: str) -> Send:
    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {key.lower() for key, _ in message["headers"]}
            added = {**HEADERS, "content-security-policy": policy, "cache-control": cache}
            more = [(k.encode(), v.encode()) for k, v in added.items() if k.encode() not in present]
            message = {**message, "headers": [*message["headers"], *more]}
        await send(message)

    return guarded


async def refuse(send: Send, status: int, sentence: str) -> None:
    body = json.dumps({"error": sentence}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
