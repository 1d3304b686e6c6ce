"""Many concurrent clients, and clients that disconnect, with a real server."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from PIL import Image

import vitreous
from tests.web.conftest import SMALL, SMALL_MODEL, SUBJECT, Served
from vitreous.web import guard, patience
from vitreous.web.settings import Settings

CLIENTS = 50


@pytest.mark.slow
def test_fifty_concurrent_clients_get_the_same_results_as_a_single_one():
    torch.manual_seed(0)  # of the weights
    with Served(replace(SMALL, queue=20)) as served:
        served.ask(f"/api/model?name={SMALL_MODEL}")
        vit = served.app.state.service.models.vit(SMALL_MODEL)
        gate = threading.Barrier(CLIENTS)

        def one(number: int) -> tuple[list, set[int]]:
            asked = {
                "model": SMALL_MODEL,
                "image": f"pair-5-{number % 25}",
                "method": "genatt",
                "targets": [number % 20],
            }
            statuses, told = set(), set()
            gate.wait(60)
            while True:
                status, answer = served.ask("/api/explain", asked)
                statuses.add(status)
                if status == 200:
                    return [answer, told], statuses
                assert status == 429
                told.add(answer["error"])
                time.sleep(0.25)  # with shorter pauses, the server mostly refuses requests

        with ThreadPoolExecutor(CLIENTS) as crowd:
            answers = list(crowd.map(one, range(CLIENTS)))

    statuses = set.union(*(seen for _, seen in answers))
    assert statuses <= {200, 429}
    assert all(sentence.endswith("try again in a moment") for (_, told), _ in answers for sentence in told)
    for number in (0, 7, 24, 25, 49):
        found = answers[number][0][0]["maps"][0]
        scene = vitreous.scenes.draw("pair", seed=5, index=number % 25)
        expected = vitreous.explain(vit, Image.fromarray(scene.image), [[number % 20]], "genatt", "probability")
        size = float(expected.patches.abs().max())  # scores of random weights are small
        torch.testing.assert_close(torch.tensor(found["scores"]), expected.patches[0], atol=1e-4 * size, rtol=1e-4)


@pytest.mark.slow
def test_work_stops_when_the_client_disconnects(served):
    served.ask("/api/model?name=scenes")
    worker = served.app.state.service.worker
    asked = json.dumps({**SUBJECT, "method": "rise(masks=4000, seed=7)", "targets": [3]})
    connection = http.client.HTTPConnection("127.0.0.1", served.settings.port, timeout=60)
    connection.request("POST", "/api/explain", asked, {"content-type": "application/json"})
    wait_until(lambda: worker.working and worker.done > 0)
    assert served.ask("/api/queue")[1]["total"] == 4000
    connection.close()

    wait_until(lambda: not worker.working)
    assert worker.done < 4000  # it never came to its end


def test_a_stalled_upload_is_aborted():
    with Served(Settings(port=0, seconds=0.5)) as served:
        connection = http.client.HTTPConnection("127.0.0.1", served.settings.port, timeout=60)
        connection.putrequest("POST", "/api/images")
        connection.putheader("content-length", "1000")
        connection.endheaders(b"half")
        answer = connection.getresponse()
        said = json.load(answer)
        connection.close()

    assert answer.status == 504
    assert said == {"error": "the image took more than 0.5 seconds to arrive"}


@pytest.mark.parametrize("first", [b"", b"GET /api/queue HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"])
@pytest.mark.parametrize("half", [b"", b"GET / HTTP/1.1\r\nHost: 127"])
def test_a_connection_without_whole_headers_is_closed(first, half, monkeypatch):
    """Also after a request that was answered: the first one is read to its end."""
    monkeypatch.setattr(patience, "HEADER_SECONDS", 0.3)
    with (
        Served(Settings(port=0)) as served,
        socket.create_connection(("127.0.0.1", served.settings.port), timeout=60) as connection,
    ):
        if first:
            connection.sendall(first)
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
        connection.sendall(half)
        rest = b"".join(iter(lambda: connection.recv(1 << 16), b""))  # ends when the server closes; else: timeout

    assert b"HTTP/1.1 200" not in rest


def test_a_stalled_body_is_aborted(monkeypatch):
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.3)
    with Served(Settings(port=0)) as served:
        connection = http.client.HTTPConnection("127.0.0.1", served.settings.port, timeout=60)
        connection.putrequest("POST", "/api/prediction")
        connection.putheader("content-type", "application/json")
        connection.putheader("content-length", "1000")
        connection.endheaders(b"half")
        answer = connection.getresponse()
        said = json.load(answer)
        connection.close()

    assert answer.status == 408
    assert said == {"error": "a request has to arrive within 0.3 seconds"}


def wait_until(condition, patience: float = 60) -> None:
    end = time.monotonic() + patience
    while not condition():
        if time.monotonic() > end:
            pytest.fail("it never happened")
        time.sleep(0.02)
