"""ASGI middleware: Host and Origin checks, bounded request bodies, security headers on every response."""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitreous.web.settings import Settings

MAX_BODY = 1 << 17  # bytes of a request that is not an image
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


class BodyTooLarge(Exception):  # noqa: N818 - an expected condition, answered with 413
    """The body exceeds its limit."""


class Guard:
    """Plain ASGI rather than a framework middleware, so that a body is counted while it arrives."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app, self.settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self.respond(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self.app(scope, receive, send)

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        send_guarded = with_headers(send, path)
        refusal = self.refusal(Headers(scope=scope), path)
        if refusal is not None:
            await refusal(scope, receive, send_guarded)
            return
        left, over, started = self.limit(path), False, False

        async def receive_counted() -> Message:
            nonlocal left, over
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                over = True
                raise BodyTooLarge
            return message

        async def send_unless_over(message: Message) -> None:
            nonlocal started
            if not over:  # the handler that read the body would send an error of its own
                started = True
                await send_guarded(message)

        with suppress(BodyTooLarge):
            await self.app(scope, receive_counted, send_unless_over)
        if over and not started:
            response = refuse(413, f"a request may have at most {self.limit(path):,} bytes")
            await response(scope, receive, send_guarded)

    def refusal(self, headers: Headers, path: str) -> JSONResponse | None:
        """Return the response to a request that is refused before its body is read, else None."""
        host, origin, length = headers.get("host", ""), headers.get("origin"), headers.get("content-length", "0")
        if not self.settings.answers_to(host):
            return refuse(
                400, "this playground is not addressed by that Host; open the address that `vitreous serve` printed"
            )
        if origin is not None and parse_origin_host(origin) != host.lower():
            return refuse(403, "requests come from the playground's own page only")
        if not length.isascii() or not length.isdigit():
            return refuse(400, "Content-Length must be a whole number")
        if int(length) > self.limit(path):
            return refuse(413, f"a request may have at most {self.limit(path):,} bytes, not {int(length):,}")
        return None

    def limit(self, path: str) -> int:
        return self.settings.upload if path == "/api/images" else MAX_BODY


def parse_origin_host(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def with_headers(send: Send, path: str) -> Send:
    """Return a `send` that adds the headers which a response does not set itself."""
    policy = DEMO_POLICY if path == "/demo" else POLICY
    cache = "no-store" if path.startswith("/api/") else "no-cache"  # pages are revalidated on every visit
    headers = {**HEADERS, "content-security-policy": policy, "cache-control": cache}

    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            for name, value in headers.items():
                MutableHeaders(scope=message).setdefault(name, value)
        await send(message)

    return guarded


def refuse(status: int, sentence: str) -> JSONResponse:
    return JSONResponse({"error": sentence}, status)
