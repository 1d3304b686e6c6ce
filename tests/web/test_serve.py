"""The command `vitreous serve`."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import NoReturn
from urllib.request import urlopen

import pytest

from tests.forked import forked_context
from tests.web.conftest import client_of
from vitreous.cli.main import main
from vitreous.cli.serve import listen
from vitreous.core.errors import DataError
from vitreous.web.settings import Settings


def serve(folder: Path) -> NoReturn:
    """Run the command in a folder, with its output in two files there."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # blocked in processes that are to be workers
    os.chdir(folder)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), descriptor)
    sys.exit(main(["serve", "--port", "0"]))


@pytest.mark.slow
def test_it_prints_its_address_and_ends_on_sigint(tmp_path):
    printed = tmp_path / "stdout"
    running = forked_context().Process(target=serve, args=(tmp_path,))
    running.start()
    try:
        deadline = time.monotonic() + 120
        while not (printed.exists() and printed.read_text().count("\n")):
            assert running.is_alive()
            assert time.monotonic() < deadline, "no address was printed"
            time.sleep(0.05)
        line = printed.read_text().splitlines()[0]
        address = re.search(r"http://127\.0\.0\.1:\d+/", line)
        assert address, line
        with urlopen(address[0], timeout=60) as page:
            assert "Vitreous" in page.read().decode()
        os.kill(running.pid, signal.SIGINT)
        running.join(60)
        assert running.exitcode in (0, 130)
    finally:
        running.kill()
        running.join()
    assert "Traceback" not in (tmp_path / "stderr").read_text()


def test_a_port_in_use_is_refused_with_a_message(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        assert main(["serve", "--port", str(port)]) == 2
    assert capsys.readouterr().err.startswith(f"error: cannot listen at 127.0.0.1:{port}")


def test_invalid_models_are_reported_before_anything_is_served(tmp_path, capsys):
    assert main(["serve", "--port", "0", "--models-folder", str(tmp_path / "no")]) == 2
    assert main(["serve", "--port", "0", "--model", "timm:x=no.safetensors"]) == 2
    assert capsys.readouterr().err.count("error: no ") == 2


def test_it_listens_on_localhost_by_default():
    listening, settings = listen(Settings(port=0))
    with listening:
        assert listening.getsockname()[0] == "127.0.0.1"
    assert settings.address == f"http://127.0.0.1:{settings.port}/"
    assert Settings(host="::1").address == "http://[::1]:8420/"
    with pytest.raises(DataError):
        listen(Settings(host="192.0.2.1", port=0))


@pytest.mark.parametrize(
    ("host", "is_open"), [("0.0.0.0", True), ("192.0.2.7", True), ("localhost", False), ("::1", False)]
)
def test_a_server_that_others_can_reach_warns_and_needs_a_token(host, is_open, monkeypatch, capsys):
    served = []
    monkeypatch.setattr("vitreous.cli.serve.listen", lambda settings: (nullcontext(), settings))
    monkeypatch.setattr("vitreous.web.app.create_app", served.append)
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: None)

    assert main(["serve", "--host", host, "--port", "8421"]) == 0

    printed = capsys.readouterr()
    token = served[0].token
    assert bool(token) == is_open
    assert ("warning: other machines can reach" in printed.err) == is_open
    assert (f":8421/?token={token}" in printed.out) == is_open
    if host == "0.0.0.0":
        assert main(["serve", "--host", host, "--port", "8421"]) == 0
        assert served[1].token != token
        assert len(token) >= 20


def test_help_imports_no_torch():
    program = "import sys; from vitreous.cli.main import main; assert main(['serve', '--help']) == 0; assert not {'torch', 'fastapi', 'PIL'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "--models-folder" in done.stdout


def test_model_options_are_checked_before_anything_is_served(tmp_path, capsys):
    refused = {
        (
            "--model",
            "timm:vit_tiny_patch16_224",
            "--classes",
            str(tmp_path / "no.txt"),
        ): "there is no file of class names",
        ("--model", "timm:vit_tiny_patch16_224", "--std", "0"): "std 0 is not of pixel values",
        ("--model", "timm:vit_tiny_patch16_224", "--size", "large"): "size large is not understood",
        ("--size", "64"): "options of a model (size) need a model",
        ("--checkpoint", "weights.pth"): "--checkpoint belongs to one --model NAME",
        ("--checkpoint", "a.pth", "--model", "timm:a", "--model", "timm:b"): "--checkpoint belongs to one --model NAME",
        ("--model", "timm:a", "--checkpoint", "no.pth"): "no checkpoint at 'no.pth'",
    }
    for arguments, sentence in refused.items():
        assert main(["serve", "--port", "0", *arguments]) == 2, arguments
        assert sentence in capsys.readouterr().err, arguments


def test_a_model_is_offered_with_its_options(tmp_path, monkeypatch, capsys):
    """Class names, input size, crop and arguments of the builder reach predictions, maps and the exported program."""
    (tmp_path / "names.txt").write_text("adder\nbeaver\ncoyote\n")
    offered = []
    monkeypatch.setattr("vitreous.cli.serve.run", lambda settings, open_page: offered.append(settings))
    model = "timm:vit_tiny_patch16_224"
    options = ["--classes", str(tmp_path / "names.txt"), "--mean", "0.5", "--std", "0.5", "--crop", "1"]
    builder = ["--size", "48", "--model-arg", "img_size=48", "--model-arg", "num_classes=3", "--model-arg", "depth=2"]
    assert main(["serve", "--model", model, "--no-pretrained", *options, *builder]) == 0, capsys.readouterr().err

    with client_of(offered[0]) as client:
        about = client.get("/api/about").json()["models"]
        facts = client.get("/api/model", params={"name": model}).json()
        subject = {"model": model, "image": "pair-1-6"}
        prediction = client.post("/api/prediction", json=subject).json()
        explained = client.post("/api/explain", json={**subject, "method": "genatt", "targets": [1]}).json()
        screen = {**subject, "methods": ["genatt"], "targets": [1]}
        code = client.post("/api/python", json=screen).json()["code"]
        embedded = client.get("/api/model", params={"name": "scenes"}).json()

    assert {"name": model, "note": "random weights"} in about
    assert (facts["classes"], facts["grid"], facts["depth"]) == (["adder", "beaver", "coyote"], [3, 3], 2)
    assert prediction["patches"] == 9
    assert explained["maps"][0]["name"] == "beaver"
    assert "load_model('timm:vit_tiny_patch16_224', pretrained=False, arguments={'img_size': 48" in code
    assert "'classes': 'names.txt'" in code
    assert str(tmp_path) not in code
    compile(code, "page.py", "exec")
    assert embedded["depth"] == 12  # embedded models keep their own
