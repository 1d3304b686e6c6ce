"""Limits and addresses, fixed when the server starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from socket import gethostname
from typing import Any

PORT = 8420
LOOPBACK = ("localhost", "127.0.0.1", "::1")
WILDCARD = ("0.0.0.0", "::", "")
DEMO = Path("out/demo.html")


@dataclass(frozen=True, slots=True)
class Settings:
    """Where the playground listens, which models it offers, and its limits."""

    models: tuple[str, ...] = ()  # in addition to the embedded ones: NAME, or NAME=CHECKPOINT
    folder: Path | None = None  # checkpoints, each named after its timm architecture
    pretrained: bool = True  # fetch the weights of models without a checkpoint
    arguments: Mapping[str, Any] = field(default_factory=dict)  # of `load_model`, for all but the embedded models
    device: str | None = None
    precision: str | None = None  # of maps, as for `explain`
    host: str = "127.0.0.1"
    port: int = PORT
    names: tuple[str, ...] = ()  # further host names of the server
    queue: int = 32  # requests that may wait
    seconds: float | int = 60  # per request, including time in the queue
    upload: int = 20 << 20  # bytes of an image
    pixels: int = 40_000_000  # of an image
    cache: int = 256 << 20  # bytes of uploads, and as many of results
    demo: Path | None = DEMO  # the page that `vitreous demo` writes
    token: str = ""  # that requests have to name, in the address once and then in a cookie; empty: none

    def answers_to(self, host: str) -> bool:
        """Whether a Host header names this server; refusing others prevents DNS rebinding."""
        name = parse_host_name(host)
        if name in {*LOOPBACK, self.host.lower(), *(name.lower() for name in self.names)}:
            return True
        return self.host in WILDCARD and (is_address(name) or name == gethostname().lower())

    @property
    def has_demo(self) -> bool:
        return self.demo is not None and self.demo.is_file()

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        if not is_address(self.host):
            return self.host.lower() == "localhost"
        return ip_address(self.host).is_loopback

    @property
    def address(self) -> str:
        name = "127.0.0.1" if self.host in WILDCARD else self.host
        return f"http://{f'[{name}]' if ':' in name else name}:{self.port}/"

    @property
    def entries(self) -> tuple[str, ...]:
        """Addresses to open in a browser, with the token: on this machine and, for a wildcard, on others."""
        query = f"?token={self.token}" if self.token else ""
        elsewhere = (f"http://{gethostname()}:{self.port}/",) if self.host in WILDCARD else ()
        return tuple(address + query for address in (self.address, *elsewhere))


def parse_host_name(host: str) -> str:
    """Return a Host header without its port, in lower case."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
