"""Ray's worker processes, forked from a process that has imported torch and timm: Ray's own import them for five seconds."""

from __future__ import annotations

import argparse
import json
import os
import runpy
import select
import signal
import socket
import sys
import traceback
from functools import partial
from multiprocessing import parent_process
from typing import NoReturn


def serve_workers(listener: socket.socket) -> None:
    """Fork a worker for every request of `tests/cluster/worker_client.py`, until the parent process has ended."""
    assert "ray" not in sys.modules  # it reads the environment of a worker when it is imported
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a worker
    parent = parent_process()
    assert parent is not None
    while parent.sentinel not in select.select([listener, parent.sentinel], [], [])[0]:
        with listener.accept()[0] as client:
            outputs = socket.recv_fds(client, 1, 2)[1]
            request = b"".join(iter(partial(client.recv, 65536), b""))
            if not os.fork():
                listener.close()
                become_worker(request, outputs)
        for descriptor in outputs:
            os.close(descriptor)


def become_worker(request: bytes, outputs: list[int]) -> NoReturn:
    """Run the command of a request, a worker of Ray, and exit."""
    status = 1
    try:
        arguments, environment, folder = json.loads(request)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for number, descriptor in enumerate(outputs, start=1):
            os.dup2(descriptor, number)
        os.chdir(folder)
        parser = argparse.ArgumentParser()
        parser.add_argument("--serialized-runtime-env-context", default="{}")
        parser.add_argument("--language")
        options, sys.argv[:] = parser.parse_known_args(arguments)
        os.environ.clear()
        os.environ.update({**environment, **json.loads(options.serialized_runtime_env_context).get("env_vars", {})})
        runpy.run_path(sys.argv[0], run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - it would continue as the server
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)
