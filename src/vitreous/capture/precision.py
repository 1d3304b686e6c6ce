"""Precision of the model's products: float32, TF32 or bfloat16, for the time of one computation.

TF32 is a setting of the whole process in torch. While scopes of several threads are open, the most exact one decides:
a computation is never less exact than it was asked to be. bfloat16 belongs to the thread that opened the scope.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch

from vitreous.core.errors import SpecError
from vitreous.models.model import BlackBox

PRECISIONS = ("float32", "tf32", "bf16", "auto")
HALF: ContextVar[bool] = ContextVar("bfloat16 products", default=False)


@dataclass(frozen=True, slots=True)
class Flags:
    """Torch's settings of float32 products, as they can be restored."""

    level: str  # of torch.set_float32_matmul_precision
    convolutions: bool | None  # torch.backends.cudnn.allow_tf32; None if two ways of setting it disagree
    settings: tuple[str, ...]  # fp32_precision of matmul, cudnn.conv and mkldnn.matmul, in torch ≥ 2.9

    @staticmethod
    def read() -> Flags:
        try:
            convolutions = torch.backends.cudnn.allow_tf32
        except RuntimeError:  # the user has set the new name only
            convolutions = None
        return Flags(torch.get_float32_matmul_precision(), convolutions, tuple(b.fp32_precision for b in backends()))

    @staticmethod
    def of(tf32: bool) -> Flags:
        return Flags("high" if tf32 else "highest", tf32, ())

    def apply(self) -> None:
        torch.set_float32_matmul_precision(self.level)
        if self.convolutions is not None:
            torch.backends.cudnn.allow_tf32 = self.convolutions
        for backend, setting in zip(backends(), self.settings, strict=False):
            if backend.fp32_precision != setting:
                backend.fp32_precision = setting


def backends() -> list[Any]:
    """Objects with a setting `fp32_precision`; none before torch 2.9."""
    settings: list[Any] = [torch.backends.cuda.matmul, getattr(torch.backends.cudnn, "conv", None)]
    settings.append(getattr(torch.backends.mkldnn, "matmul", None))
    return settings if all(hasattr(backend, "fp32_precision") for backend in settings) else []


@dataclass(slots=True)
class OpenScopes:
    """Scopes that are open in all threads, counted by what they ask of float32 products."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    counts: Counter[str] = field(default_factory=Counter)
    before: Flags | None = None

    def change(self, name: str, step: int) -> None:
        with self.lock:
            if self.before is None:
                self.before = Flags.read()
            before = self.before
            self.counts[name] += step
            if self.counts["float32"]:
                flags = Flags.of(tf32=False)
            elif self.counts["tf32"] and not self.counts["as set"]:
                flags = Flags.of(tf32=True)
            else:
                flags = before
            if not self.counts.total():
                self.before = None
            if Flags.read() != flags:
                flags.apply()


OPEN = OpenScopes()


@contextmanager
def computing(precision: str | None, device: torch.device) -> Iterator[None]:
    """Run the body in a precision, and restore torch's settings after it.

    Parameters
    ----------
    precision
        "float32", "tf32" or "bf16", as `effective_precision` returns them; None leaves torch's settings as they are,
        except for autocast, which is always switched off.
        With "bf16", products and attention of the blocks are in bfloat16, and other products are in TF32 where the
        device has it; the residual stream, norms and head are not rounded.
    device
        Device of the model.

    Examples
    --------
    >>> with computing("float32", torch.device("cpu")):
    ...     torch.get_float32_matmul_precision()
    'highest'
    """
    name = precision or "as set"
    if precision == "bf16":
        name = "tf32" if has_tf32(device) else "float32"
    half = HALF.set(precision == "bf16")
    OPEN.change(name, 1)
    try:
        with without_autocast():
            yield
    finally:
        OPEN.change(name, -1)
        HALF.reset(half)


def has_tf32(device: torch.device) -> bool:
    """Whether the device multiplies in TF32."""
    if device.type != "cuda" or torch.version.cuda is None:
        return False
    return torch.cuda.get_device_capability(device)[0] >= 8


def has_bf16(device: torch.device) -> bool:
    """Whether the device multiplies in bfloat16 without emulating it; assumed of devices other than CUDA's."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device)[0] >= 8


def half_products() -> bool:
    """Whether this thread is in a scope of "bf16"."""
    return HALF.get()


def in_blocks(device: torch.device) -> AbstractContextManager[Any]:
    """Context for the model's own operations in its blocks: bfloat16 products in a scope of "bf16"."""
    return torch.autocast(device.type, torch.bfloat16) if HALF.get() else nullcontext()


def full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """Context in which nothing is converted to a lower precision."""
    return torch.autocast(device.type, enabled=False)


@contextmanager
def without_autocast() -> Iterator[None]:
    """Context (and decorator) in which an autocast that the caller switched on does not apply; one of the model's own does."""
    with ExitStack() as scopes:
        for kind in ("cpu", "cuda", "mps", "xpu"):
            if torch.is_autocast_enabled(kind):
                scopes.enter_context(torch.autocast(kind, enabled=False))
        yield


def check_precision(precision: Any) -> None:
    """Raise a SpecError unless `precision` is None or one of `PRECISIONS`."""
    if precision is not None and precision not in PRECISIONS:
        names = ", ".join(map(repr, PRECISIONS))
        raise SpecError(f"precision={precision!r}; known: {names}, and None for the precision that the model has")


def effective_precision(precision: str | None, model: BlackBox, lowest: str) -> str | None:
    """Precision to compute in.

    Parameters
    ----------
    precision
        As requested: one of `PRECISIONS`, or None.
    model
        The model.
    lowest
        Lowest precision that keeps the ranks of what is computed, as `Facts.precision`.

    Returns
    -------
    str or None
        "float32", "tf32" or "bf16": as requested, but no lower than `lowest`, and TF32 only where the device has it.
        None for the model as it is.

    Raises
    ------
    SpecError
        If the precision is not known, or the model's weights have another one.
    """
    check_precision(precision)
    if precision is None:
        return None
    if model.dtype != torch.float32:
        own = str(model.dtype).removeprefix("torch.")
        if precision == "auto" or (precision, own) == ("bf16", "bfloat16"):
            return None
        raise SpecError(
            f"precision={precision!r} needs float32 weights, and those of {model.name!r} are {own}; convert them by "
            "module.float(), or leave precision out to compute in the precision of the weights"
        )
    if precision == "bf16" and lowest in ("bf16", "bf16 weights") and has_bf16(model.device):
        return "bf16"
    return "float32" if "float32" in (precision, lowest) or not has_tf32(model.device) else "tf32"
