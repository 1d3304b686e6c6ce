"""The application: pages, endpoints, and one sentence for whatever goes wrong."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from vitreous import __version__
from vitreous.core.errors import VitreousError
from vitreous.web.about import describe
from vitreous.web.guard import Guard
from vitreous.web.roster import Unknown
from vitreous.web.routes import api
from vitreous.web.settings import Settings
from vitreous.web.studio import Studio
from vitreous.web.waiting import Refused

STATIC = Path(__file__).with_name("static")
log = logging.getLogger("vitreous.web")


def create_app(settings: Settings | None = None) -> FastAPI:
    """The playground as an ASGI application."""
    studio = Studio(settings or Settings())
    app = FastAPI(
        title="Vitreous playground",
        description="Which patches made a Vision Transformer say so. Errors are JSON with one sentence.",
        version=__version__,
        docs_url=None,  # those pages fetch scripts from elsewhere; ours is /api
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.studio = studio
    app.include_router(api)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    for path, file in (("/", "index.html"), ("/api", "api.html"), ("/favicon.ico", "icon.svg")):
        app.add_api_route(path, page(STATIC / file), include_in_schema=False)
    app.add_api_route("/demo", page(studio.settings.demo), include_in_schema=False)
    app.add_middleware(Guard, settings=studio.settings)
    for kind, handler in HANDLERS.items():
        app.add_exception_handler(kind, handler)
    return app


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    studio: Studio = app.state.studio
    studio.worker.submit(("about",), ("about",), lambda asked: [describe(studio) for _ in asked], None)  # imports torch
    yield
    studio.worker.close()


def page(file: Path | None) -> Any:
    async def serve() -> FileResponse:
        if file is None or not file.is_file():
            raise HTTPException(404, "there is no demo page yet; `vitreous demo` writes it")
        return FileResponse(file)

    return serve


# ── one sentence ─────────────────────────────────────────────────────────────────────────────────


def error(status: int, sentence: str) -> JSONResponse:
    headers = {"retry-after": "1"} if status == 429 else None
    return JSONResponse({"error": " ".join(sentence.split())}, status, headers)


async def refused(_: Request, problem: Any) -> JSONResponse:
    return error(problem.status, problem.sentence)


async def unknown(_: Request, problem: Any) -> JSONResponse:
    return error(404, str(problem))


async def cannot(_: Request, problem: Any) -> JSONResponse:
    return error(422, str(problem))


async def plain(_: Request, problem: Any) -> JSONResponse:
    return error(problem.status_code, str(problem.detail))


async def invalid(_: Request, problem: Any) -> JSONResponse:
    first = problem.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part not in ("body", "query"))
    return error(422, f"{where or 'the request'}: {first['msg']}")


async def unexpected(_: Request, problem: Any) -> JSONResponse:
    return error(500, f"unexpected {type(problem).__name__}; the server's log has the details")


HANDLERS: dict[Any, Any] = {
    Refused: refused,
    Unknown: unknown,
    VitreousError: cannot,
    HTTPException: plain,
    RequestValidationError: invalid,
    Exception: unexpected,
}
