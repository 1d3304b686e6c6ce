"""ASGI middleware: Host and Origin checks, bounded request bodies, security headers on every response."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from hmac import compare_digest
from urllib.parse import urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitreous.web.settings import Settings

MAX_BODY = 1 << 17  # bytes of a request that is not an image
BODY_SECONDS = 10.0  # in which such a body has to arrive
TOKEN = "token"  # name of the query parameter
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


class BodyTooLate(Exception):  # noqa: N818 - an expected condition, answered with 408
    """The body did not arrive in time."""


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
        if (redirect := self.admit(scope)) is not None:
            await redirect(scope, receive, send_guarded)
            return
        left, over, late, started, complete = self.limit(path), False, False, False, path == "/api/images"
        end = asyncio.get_running_loop().time() + min(BODY_SECONDS, self.settings.seconds)

        async def receive_counted() -> Message:
            nonlocal left, over, late, complete
            try:
                async with asyncio.timeout_at(None if complete else end):  # the endpoint of images has its own limit
                    message = await receive()
            except TimeoutError:
                late = True
                raise BodyTooLate from None
            complete = complete or not message.get("more_body", False)
            left -= len(message.get("body", b""))
            if left < 0:
                over = True
                raise BodyTooLarge
            return message

        async def send_unless_over(message: Message) -> None:
            nonlocal started
            if not (over or late):  # the handler that read the body would send an error of its own
                started = True
                await send_guarded(message)

        with suppress(BodyTooLarge, BodyTooLate):
            await self.app(scope, receive_counted, send_unless_over)
        if over and not started:
            response = refuse(413, f"a request may have at most {self.limit(path):,} bytes")
            await response(scope, receive, send_guarded)
        if late and not started:
            response = refuse(
                408, f"a request has to arrive within {min(BODY_SECONDS, self.settings.seconds):g} seconds"
            )
            await response(scope, receive, send_guarded)

    def admit(self, scope: Scope) -> Response | None:
        """Return the response to a request that does not name the token, or names it in the address of a page; else None.

        The address of a page is replaced by one without the token, which a cookie then names.
        """
        token, cookie = self.settings.token, f"vitreous-{self.settings.port}"
        if not token:
            return None
        connection = HTTPConnection(scope)
        named = connection.query_params.get(TOKEN)
        if named is not None and is_same(named, token):
            query = urlencode([(key, value) for key, value in connection.query_params.multi_items() if key != TOKEN])
            path = "/" + scope["path"].lstrip("/")  # "//name" would be another host
            response = RedirectResponse(f"{path}{'?' if query else ''}{query}", 303)
            # not "strict": the address may be opened from a mail or a chat
            response.set_cookie(cookie, token, httponly=True, samesite="lax")
            return response if scope["method"] == "GET" and not scope["path"].startswith("/api/") else None
        if is_same(connection.cookies.get(cookie, ""), token):
            return None
        return refuse(
            401, "open the address that `vitreous serve` printed, with its token, once; requests need that token"
        )

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


def is_same(named: str, token: str) -> bool:
    """Compare in a time that does not depend on where they differ."""
    return compare_digest(named.encode(), token.encode())


def refuse(status: int, sentence: str) -> JSONResponse:
    return JSONResponse({"error": sentence}, status)
