"""Hostile requests: decompression bombs, invalid files, other sites, paths, and timeouts."""

from __future__ import annotations

import json
import re
import struct
import threading
import zlib
from io import BytesIO

import pytest
from PIL import Image

from tests.web.conftest import HERE, SUBJECT, client_of, png
from vitreous.core.errors import DataError, ModelError
from vitreous.web import guard
from vitreous.web.app import STATIC
from vitreous.web.image_store import FORMATS
from vitreous.web.model_pool import list_entries, list_folder
from vitreous.web.settings import Settings
from vitreous.web.worker import describe_call


def sentence(answer, status: int) -> str:
    """Error message of a response, which must be JSON without a traceback."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert list(answer.json()) == ["error"]
    said = answer.json()["error"]
    assert said
    assert "\n" not in said
    assert "Traceback" not in said
    return said


def bomb(width: int, height: int) -> bytes:
    """A PNG with a large declared size and little data."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0" * 1000))
        + chunk(b"IEND", b"")
    )


# ── images ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [(8000, 6000), (30_000, 30_000), (60_000, 60_000)])
def test_a_decompression_bomb_is_refused_before_decoding(client, size, monkeypatch):
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("unpacked"))

    assert "pixels" in sentence(client.post("/api/images", content=bomb(*size)), 422)


@pytest.mark.parametrize("size", [(1, 39_000_000), (39_000_000, 1)])
def test_an_image_of_one_column_is_refused_before_decoding(client, size, monkeypatch):
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("unpacked"))

    assert "more than 20,000 on a side" in sentence(client.post("/api/images", content=bomb(*size)), 422)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "TIFF"])
def test_an_image_cut_short_is_refused(client, form):
    whole = png(200, 160, form)

    assert "damaged" in sentence(client.post("/api/images", content=whole[: len(whole) // 2]), 422)
    assert client.post("/api/images", content=whole).status_code == 200


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"%PDF-1.7",
        b"MZ" + b"\0" * 500,
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff\xe0" + b"\xff" * 300,
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n",
        b"\0" * 5000,
    ],
)
def test_a_body_that_is_no_image_is_refused(client, data):
    sentence(client.post("/api/images", content=data), 422)


def test_only_plain_formats_are_read(client):
    assert "EPS" not in FORMATS
    stream = BytesIO()
    Image.new("RGB", (10, 10)).save(stream, "ICO")
    sentence(client.post("/api/images", content=stream.getvalue()), 422)


def test_uploads_are_bounded_in_bytes_however_they_come():
    with client_of(Settings(upload=5000)) as client:
        assert "5,000" in sentence(client.post("/api/images", content=b"x" * 5001), 413)

        def dripping():
            for _ in range(60):
                yield b"x" * 100

        assert "5,000" in sentence(client.post("/api/images", content=dripping()), 413)  # no Content-Length
        assert client.post("/api/images", content=png(20, 20)).status_code == 200
        assert sentence(client.post("/api/prediction", content=b"[" * (guard.MAX_BODY + 1)), 413)


def test_old_uploads_make_room_for_new_ones():
    first, second = png(1300, 1200), png(1301, 1200)
    with client_of(Settings(cache=len(second) + 600)) as client:
        names = [client.post("/api/images", content=first).json()["image"]]
        assert len(client.get("/api/thumbnail", params={"image": names[0]}).content) < len(second)  # it is cached
        names.append(client.post("/api/images", content=second).json()["image"])

        assert sentence(client.get("/api/thumbnail", params={"image": names[0]}), 404).startswith(
            "that image is not here"
        )
        assert client.get("/api/thumbnail", params={"image": names[1]}).status_code == 200


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "pair-1-1/../..",
        "pair-1",
        "pair--1-1",
        "PAIR-1-1",
        "pair-1-99999",
        "x" * 64,
        "%00",
        "pair-1-1\n",
    ],
)
def test_no_image_has_such_a_name(client, name):
    sentence(client.get("/api/thumbnail", params={"image": name}), 422)
    sentence(client.post("/api/prediction", json={"model": "scenes", "image": name}), 422)


# ── paths, hosts, sites ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/etc/passwd",
        "/static/",
    ],
)
def test_only_files_of_the_pages_are_served(client, path):
    answer = client.get(path)

    assert answer.status_code in (404, 405)
    assert "error" in answer.json()


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "", "127.0.0.1@evil", "0.0.0.0"]
)
def test_a_foreign_host_is_refused(client, host):
    sentence(client.get("/", headers={"host": host}), 400)
    sentence(client.get("/api/queue", headers={"host": host}), 400)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1234", "127.0.0.1:8420", "[::1]:8420", "[::1]"])
def test_the_server_s_own_host_names_are_accepted(client, host):
    assert client.get("/api/queue", headers={"host": host}).status_code == 200


def test_accepted_host_names_are_set_at_start():
    named = Settings(host="192.0.2.7", names=("lab.example.org",))
    everywhere = Settings(host="0.0.0.0")

    assert all(named.answers_to(host) for host in ("192.0.2.7:80", "lab.example.org", "localhost:8420"))
    assert not any(named.answers_to(host) for host in ("192.0.2.8", "example.org"))
    assert everywhere.answers_to("192.0.2.9:8420")  # an address cannot be another site's name
    assert not everywhere.answers_to("rebound.example")


def test_requests_from_other_sites_are_refused_without_details(client):
    answer = client.post("/api/images", content=png(), headers={"origin": "https://evil.example"})

    sentence(answer, 403)
    sentence(client.post("/api/prediction", json=SUBJECT, headers={"origin": "null"}), 403)
    asked = client.options("/api/prediction", headers={"origin": HERE, "access-control-request-method": "POST"})
    for one in (answer, asked, client.get("/api/queue", headers={"origin": HERE})):
        assert not [name for name in one.headers if name.startswith("access-control")]


@pytest.mark.parametrize("path", ["/", "/api", "/api/queue", "/static/playground.js", "/nowhere"])
def test_every_answer_carries_the_policy(client, path):
    headers = client.get(path).headers

    assert headers["content-security-policy"] == guard.POLICY
    assert "unsafe" not in guard.POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_the_pages_load_no_external_resources():
    for file in (*STATIC.iterdir(), *STATIC.with_name("templates").iterdir()):
        text = file.read_text()
        outside = [one for one in re.findall(r"https?://[^\s\"'`)]+", text) if "www.w3.org" not in one]
        assert outside == [], file.name
        assert not re.findall(r"<script(?![^>]*src=)|\sstyle=|\son\w+=\"", text) or file.suffix == ".js", file.name


def test_the_demo_page_is_served_if_it_exists(tmp_path):
    with client_of(Settings(demo=tmp_path / "demo.html")) as client:
        assert "vitreous demo" in sentence(client.get("/demo"), 404)
        assert client.get("/api/about").json()["demo"] is False
        (tmp_path / "demo.html").write_text("<style>p{}</style>")
        answer = client.get("/demo")
        assert client.get("/api/about").json()["demo"] is True
    assert answer.text == "<style>p{}</style>"
    assert "script" not in answer.headers["content-security-policy"]


# ── models and methods ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "model", ["timm:vit_base_patch16_224", "hf:google/vit-base-patch16-224", "../scenes", "/etc/passwd", "Scenes"]
)
def test_only_offered_models_are_loaded(client, model):
    assert "scenes-biased" in sentence(client.get("/api/model", params={"name": model}), 404)
    sentence(client.post("/api/prediction", json={**SUBJECT, "model": model}), 404)
    sentence(client.get("/api/preprocessed", params={**SUBJECT, "model": model}), 404)


def test_only_checkpoints_inside_the_folder_are_offered(tmp_path):
    folder, outside = tmp_path / "models", tmp_path / "secret.safetensors"
    folder.mkdir()
    outside.write_bytes(b"x")
    (folder / "deit_tiny_patch16_224.mine.safetensors").write_bytes(b"x")
    (folder / "link.safetensors").symlink_to(outside)
    (folder / "notes.txt").write_text("x")

    (only,) = list_folder(folder)
    assert (only.name, only.load) == ("deit_tiny_patch16_224.mine", "timm:deit_tiny_patch16_224")
    with client_of(Settings(folder=folder)) as client:
        said = sentence(client.get("/api/model", params={"name": only.name}), 422)
    assert "deit_tiny_patch16_224.mine.safetensors" in said
    assert str(tmp_path) not in said


def test_invalid_models_are_refused_at_start(tmp_path):
    for settings in (Settings(folder=tmp_path), Settings(folder=tmp_path / "no"), Settings(models=("timm:x=no.pth",))):
        with pytest.raises(DataError):
            list_entries(settings)
    with pytest.raises(ModelError, match="two models"):
        list_entries(Settings(models=("timm:a", "timm:a")))


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("genat", "did you mean 'genatt'?"),
        ("tis(masks=1000000)", "up to 4096"),
        ("tis(masks=100000000)", "at most 10000000"),
        ("rise(masks=-100000000)", "at least 1"),
        ("rollout(start=100)", "up to 64"),
        ("decompx+skipplus(start=99)", "up to 64"),
        ("ixg+plus+plus", "more than one fold"),
        ("genatt(__import__('os').system('x'))", "options"),
        ("ixg(" + "(" * 100, "not closed"),
    ],
)
def test_invalid_specs_are_refused_with_valid_alternatives(client, method, expected):
    assert expected in sentence(client.post("/api/explain", json={**SUBJECT, "method": method, "targets": [1]}), 422)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"targets": [20]}, "classes 0 to 19"),
        ({"targets": []}, "targets"),
        ({"targets": [1, 2, 3]}, "targets"),
        ({"targets": ["fish"]}, "targets"),
        ({"targets": [True]}, "targets"),
        ({"targets": [-1]}, "targets"),
        ({"question": "why"}, "question"),
        ({"method": "x" * 161}, "method"),
        ({"more": 1}, "more"),
    ],
)
def test_invalid_fields_are_named(client, change, expected):
    asked = {**SUBJECT, "method": "genatt", "targets": [1], **change}

    assert expected in sentence(client.post("/api/explain", json=asked), 422)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'{"model": NaN}', b"\xff\xfe", json.dumps({"a": "b" * 1000}).encode()]
)
def test_an_invalid_body_is_refused(client, body):
    sentence(client.post("/api/prediction", content=body, headers={"content-type": "application/json"}), 422)


def test_removing_a_patch_outside_the_grid_is_refused(client):
    assert "0 to 195" in sentence(client.post("/api/prediction", json={**SUBJECT, "removed": [196]}), 422)


# ── internal errors and timeouts ──────────────────────────────────────────────────────────────────


def test_an_internal_error_is_reported_in_one_line(client, monkeypatch, caplog):
    def broken(*_):
        raise RuntimeError("the abacus\nfell from /home/somebody")

    monkeypatch.setattr(client.app.state.service, "curve", broken)
    said = sentence(client.post("/api/curve", json={**SUBJECT, "method": "ixg", "target": 1}), 500)

    assert "RuntimeError" in said
    assert "somebody" not in said
    assert "the abacus" in caplog.text  # for the operator of the server


@pytest.mark.slow
def test_work_that_takes_too_long_is_stopped():
    with client_of(Settings(seconds=0.6)) as client:
        service = client.app.state.service
        service.facts("scenes")  # loaded, so that only the work counts
        key, work = describe_call(service.facts, "scenes")
        service.worker.submit(key, key, work, None).result.result(60)
        said = sentence(client.post("/api/explain", json={**SUBJECT, "method": "rise", "targets": [1]}), 504)
        assert "0.6 seconds" in said
        last = service.worker.submit("last", "last", lambda payloads: ["done"], None)
        assert last.result.result(60) == "done"  # the thread is free again, long before 4 000 masks are through


def test_a_request_beyond_the_queue_limit_is_refused():
    with client_of(Settings(queue=2)) as client:
        worker, gate = client.app.state.service.worker, threading.Event()
        begun = threading.Event()

        def held(payloads):
            begun.set()
            gate.wait(60)
            return payloads

        client.get("/api/about")
        worker.submit("held", "held", held, 1)
        assert begun.wait(60)
        for i in range(2):
            worker.submit(i, i, held, i)
        answer = client.get("/api/model", params={"name": "scenes"})
        state = client.get("/api/queue").json()
        gate.set()

    assert "2 requests wait" in sentence(answer, 429)
    assert answer.headers["retry-after"] == "1"
    assert (state["working"], state["waiting"]) == (True, 2)


def test_requests_need_the_token_which_the_first_page_turns_into_a_cookie():
    with client_of(Settings(token="sesame", port=8421)) as client:
        for path in ("/", "/static/style.css", "/api/about", "/openapi.json", "/?token=sesam", "/?token=", "/?token=ä"):
            assert "with its token" in sentence(client.get(path), 401)
        assert client.post("/api/prediction", json=SUBJECT).status_code == 401
        assert client.get("/api/queue?token=sesame").status_code == 200
        assert not client.cookies

        first = client.get("http://127.0.0.1//pairs?a=1&token=sesame&b=2", follow_redirects=False)
        assert (first.status_code, first.headers["location"]) == (303, "/pairs?a=1&b=2")
        assert "httponly" in first.headers["set-cookie"].lower()
        assert dict(client.cookies) == {"vitreous-8421": "sesame"}
        assert client.get("/api/queue").status_code == 200
        assert client.get("/?token=sesame").status_code == 200  # after the redirection
        client.cookies.clear()
        client.cookies.set("vitreous-8421", "guess")
        assert client.get("/").status_code == 401


def test_tokens_are_compared_in_constant_time(monkeypatch):
    compared = []
    monkeypatch.setattr(guard, "compare_digest", lambda *texts: compared.append(texts) or False)
    with client_of(Settings(token="sesame")) as client:
        assert client.get("/?token=guess").status_code == 401

    assert (b"guess", b"sesame") in compared


def test_an_invalid_content_length_is_refused(client):
    sentence(client.get("/api/queue", headers={"content-length": "many"}), 400)
