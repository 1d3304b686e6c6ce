"""The playground in this process, and a real server on its own port."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from importlib import import_module
from io import BytesIO
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest
from PIL import Image

import vitreous
from vitreous.cli.serve import configure, listen
from vitreous.web.budget import PassCost
from vitreous.web.settings import Settings

if TYPE_CHECKING:
    from fastapi.testclient import TestClient

HERE = "http://127.0.0.1"
SMALL_MODEL = "timm:vit_tiny_patch16_224"  # with random weights, on 4 x 4 patches
SMALL = Settings(
    models=(SMALL_MODEL,),
    pretrained=False,
    arguments={"img_size": 64, "depth": 2, "embed_dim": 24, "num_heads": 2},
    port=0,
    seconds=600,
)
SUBJECT = {"model": "scenes", "image": "pair-1-6"}


@pytest.fixture(scope="session", autouse=True)
def modules() -> None:
    """Import what the worker thread needs: Python 3.11 cannot compile in two threads at once, as the shape checks do."""
    vitreous.load("scenes")
    vitreous.list_methods()
    for module in (
        "draw",
        "metrics.localisation",
        "bench.cost",
        "metrics.model_outputs",
        "web.render",
        "web.exports",
        "web.responses",
    ):
        import_module(f"vitreous.{module}")


def no_cost(_) -> PassCost:
    """Costs of zero: every method gets all its samples, also on a slow machine."""
    return PassCost(0.0, 0.0)


def client_of(settings: Settings, cost=no_cost) -> TestClient:
    from fastapi.testclient import TestClient

    from vitreous.web.app import create_app

    return TestClient(create_app(settings, cost), base_url=HERE, raise_server_exceptions=False)


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with client_of(Settings()) as opened:
        yield opened


def png(width: int = 60, height: int = 40, form: str = "PNG", **options) -> bytes:
    y, x = np.mgrid[0:height, 0:width]
    stream = BytesIO()
    Image.fromarray(np.stack([x * 4 % 256, y * 5 % 256, (x + y) % 256], -1).astype(np.uint8)).save(
        stream, form, **options
    )
    return stream.getvalue()


class Served:
    """A server in a thread."""

    def __init__(self, settings: Settings, cost=no_cost) -> None:
        import uvicorn

        from vitreous.web.app import create_app

        listening, self.settings = listen(settings)
        self.app = create_app(self.settings, cost)
        config = configure(self.app, log_level="error", timeout_graceful_shutdown=1)
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [listening]}, daemon=True)
        self.address = self.settings.address.rstrip("/")

    def __enter__(self) -> Served:
        self.thread.start()
        while not self.server.started:
            assert self.thread.is_alive()
            time.sleep(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.thread.join(timeout=20)

    def ask(self, path: str, body: dict | None = None) -> tuple[int, dict]:
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.address + path, data, {"content-type": "application/json"})
        try:
            with urlopen(request, timeout=120) as answer:
                return answer.status, json.load(answer)
        except HTTPError as problem:
            with problem:
                return problem.code, json.load(problem)


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    with Served(Settings(port=0)) as running:
        yield running


@pytest.fixture(scope="session")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="journeys need playwright, in vitreous[dev]")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("journeys need Chromium on the PATH (Debian: apt install chromium)")
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()
