"""The ASGI application: pages, endpoints, and error handlers that answer with one sentence."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from fastapi.templating import Jinja2Templates
from starlette.exceptions import HTTPException

from vitreous import __version__
from vitreous.core.errors import VitreousError
from vitreous.web.budget import MeasureCost, measure_cost
from vitreous.web.guard import Guard
from vitreous.web.model_pool import NotAvailable
from vitreous.web.pairs import PairWork, pairs_api
from vitreous.web.routes import api
from vitreous.web.service import Service
from vitreous.web.settings import Settings
from vitreous.web.worker import describe_call

if TYPE_CHECKING:
    from vitreous.pairs.text_tower import TextTower

STATIC = Path(__file__).with_name("static")
TEMPLATES = Jinja2Templates(Path(__file__).with_name("templates"))
PAGES = {"/": "index.html", "/pairs": "pairs.html", "/api": "api.html"}


def create_app(
    settings: Settings | None = None, cost: MeasureCost = measure_cost, texts: dict[str, TextTower] | None = None
) -> FastAPI:
    """Return the playground as an ASGI application.

    Parameters
    ----------
    settings : Settings, optional
        Models, addresses and limits.
    cost : callable, optional
        Measures seconds per pass of a model, from which sample counts are chosen; tests pass a constant.
    texts : dict, optional
        Text towers by the name of a model that is offered, for the page of pairs; those of `hf:` models are found.
    """
    service = Service(settings or Settings(), cost)
    app = FastAPI(
        title="Vitreous playground",
        description="Explanations of vision transformers. Errors are JSON with one sentence.",
        version=__version__,
        docs_url=None,  # FastAPI's own pages load scripts from other hosts; ours is /api
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.service = service
    app.state.pairs = PairWork(service, texts)
    app.include_router(api)
    app.include_router(pairs_api)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    for path, template in PAGES.items():
        app.add_api_route(path, serve_page(template), include_in_schema=False)
    app.add_api_route("/favicon.ico", serve_file(STATIC / "icon.svg"), include_in_schema=False)
    app.add_api_route("/demo", serve_file(service.settings.demo), include_in_schema=False)
    app.add_middleware(Guard, settings=service.settings)
    for kind in (HTTPException, RequestValidationError, VitreousError, Exception):
        app.add_exception_handler(kind, respond_to_error)
    return app


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: Service = app.state.service
    # imports torch in the worker's thread before the first request needs it
    key, work = describe_call(service.about)
    service.worker.submit(key, key, work, None)
    yield
    service.worker.close(wait=5.0)


def serve_page(template: str) -> Any:
    """Return an endpoint that sends one of the pages, which have their head and their bar in common."""

    async def serve(request: Request) -> Response:
        return TEMPLATES.TemplateResponse(request, template)

    return serve


def serve_file(file: Path | None) -> Any:
    """Return an endpoint that sends a file, or 404 while it does not exist."""

    async def serve() -> FileResponse:
        if file is None or not file.is_file():
            raise HTTPException(404, "there is no demo page yet; `vitreous demo` writes it")
        return FileResponse(file)

    return serve


async def respond_to_error(_: Request, problem: Exception) -> JSONResponse:
    """Return the status of an exception and one sentence."""
    headers = None
    match problem:
        case HTTPException():
            status, sentence = problem.status_code, str(problem.detail)
            headers = {"retry-after": "1"} if status == 429 else None
        case RequestValidationError():
            first = problem.errors()[0]
            where = ".".join(str(part) for part in first["loc"] if part not in ("body", "query"))
            status, sentence = 422, f"{where or 'the request'}: {first['msg']}"
        case VitreousError():
            status, sentence = 404 if isinstance(problem, NotAvailable) else 422, str(problem)
        case _:
            status, sentence = 500, f"unexpected {type(problem).__name__}; the server's log has the details"
    return JSONResponse({"error": " ".join(sentence.split())}, status, headers)
