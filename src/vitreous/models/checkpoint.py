"""Read weights from a local file: safetensors, or torch files with `weights_only=True`. No pickled code is executed."""

from __future__ import annotations

import pickle
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from vitreous.core.errors import DataError, ModelError

NESTS = ("state_dict_ema", "model_ema", "state_dict", "model", "module")  # averaged (EMA) weights first, as in timm
PREFIXES = ("module.", "_orig_mod.", "model.")  # of data-parallel, compiled and Lightning wrappers


def read_checkpoint(path: str | Path) -> dict[str, Tensor]:
    """Read the weights of a safetensors or torch file.

    Parameters
    ----------
    path
        A local file.

    Returns
    -------
    dict
        Weights by name. Common nestings (such as "state_dict") and wrapper prefixes (such as "module.") are removed.

    Raises
    ------
    DataError
        If the file does not exist, cannot be read, contains pickled Python objects, or contains no tensors.
    """
    path = Path(path)
    if path.is_dir():
        raise DataError(f"checkpoint '{path}' is a folder; give a .safetensors or .pth file")
    if not path.is_file():
        raise DataError(f"no checkpoint at '{path}'; give the path of a local .safetensors or .pth file")
    content = read_safetensors(path) if looks_like_safetensors(path) else read_torch(path)
    weights = unwrap(content)
    if not weights:
        raise DataError(f"checkpoint '{path}' holds no weights; a state_dict of tensors would work")
    return weights


def looks_like_safetensors(path: Path) -> bool:
    """Whether the suffix is .safetensors, or the header is that format's: eight bytes of length, then JSON."""
    try:
        with path.open("rb") as file:
            return path.suffix == ".safetensors" or file.read(9)[8:] == b"{"
    except OSError as error:
        raise DataError(f"checkpoint '{path}' cannot be opened: {error.strerror}") from None


def read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError):
        raise DataError(f"checkpoint '{path}' is damaged or not a safetensors file") from None


def read_torch(path: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickle protocols, which do not matter if the file loads
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "unsupported" in str(error).lower() or "GLOBAL" in str(error):
            raise DataError(
                f"checkpoint '{path}' holds pickled Python objects, which are never loaded; "
                "save the model's state_dict() as safetensors instead"
            ) from None
        raise DataError(f"checkpoint '{path}' is damaged or not a torch file") from None
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, zipfile.BadZipFile):
        raise DataError(f"checkpoint '{path}' is damaged or not a torch file") from None


def unwrap(content: Any) -> dict[str, Tensor]:
    """Innermost mapping of names to tensors, without wrapper prefixes; empty if there is none."""
    while isinstance(content, Mapping):
        nest = next((key for key in NESTS if isinstance(content.get(key), Mapping)), None)
        if nest is None:
            break
        content = content[nest]
    if not isinstance(content, Mapping):
        return {}
    weights = {str(key): value for key, value in content.items() if isinstance(value, Tensor)}
    while prefix := next((p for p in PREFIXES if weights and all(key.startswith(p) for key in weights)), None):
        weights = {key.removeprefix(prefix): value for key, value in weights.items()}
    return weights


def load_into(module: nn.Module, state: dict[str, Tensor], name: str) -> None:
    """Load weights into `module`; raise `ModelError` that lists missing, unexpected and mis-shaped ones, if any."""
    own = module.state_dict()
    shapes = [
        f"{key} {tuple(state[key].shape)} for {tuple(own[key].shape)}"
        for key in own.keys() & state.keys()
        if state[key].shape != own[key].shape
    ]
    if shapes:
        refuse_mismatch(
            name, {"mis-shaped": shapes, "missing": own.keys() - state.keys(), "unexpected": state.keys() - own.keys()}
        )
    refuse_integers(name, own, whole_numbers(state))
    left = module.load_state_dict(state, strict=False)
    refuse_mismatch(name, {"missing": left.missing_keys, "unexpected": left.unexpected_keys})


def whole_numbers(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Weights that are not floating-point numbers, with their data type."""
    return {key: f"{weight.dtype}"[6:] for key, weight in state.items() if not weight.is_floating_point()}


def stored_whole_numbers(path: str | Path) -> dict[str, str]:
    """The same of a safetensors file, of which only the header is read."""
    with safe_open(path, framework="pt") as file:
        types = {key: file.get_slice(key).get_dtype() for key in file.keys()}  # noqa: SIM118 - not a dictionary
    return {key: name.lower() for key, name in types.items() if not name.startswith(("F", "BF"))}


def refuse_integers(name: str, own: Mapping[str, Tensor], whole: Mapping[str, str]) -> None:
    """Raise `ModelError` if `whole` numbers would be cast to floating-point weights: nothing says their scale.

    Weights that the model knows by another name (of older versions of a library) count by the end of their name.
    """

    def is_cast(key: str) -> bool:
        return own[key].is_floating_point() if key in own else key.endswith((".weight", ".bias"))

    cast = [f"{key} {kind}" for key, kind in whole.items() if is_cast(key)]
    if cast:
        raise ModelError(
            f"{len(cast)} weights for {name!r} are not floating-point numbers ({list_first(cast)}), as in a quantised model, and "
            "nothing says their scale; a checkpoint of floating-point weights would work"
        )


def refuse_mismatch(name: str, keys_by_problem: Mapping[str, Any]) -> None:
    """Raise `ModelError` with the first few weights of each kind in `keys_by_problem`; return if all kinds are empty."""
    parts = [f"{len(keys)} {kind} ({list_first(keys)})" for kind, keys in keys_by_problem.items() if keys]
    if parts:
        raise ModelError(f"the weights do not fit {name!r}: {', '.join(parts)}")


def list_first(keys: Any, most: int = 3) -> str:
    """The first `most` keys in sorted order, as text."""
    keys = sorted(str(key) for key in keys)
    return ", ".join(keys[:most]) + (", …" if len(keys) > most else "")


def not_fetched(name: str, problem: Exception) -> str:
    """Error message for weights that could not be fetched."""
    reason = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
    return (
        f"the weights of {name!r} could not be fetched ({reason[:120]}); "
        "pass checkpoint='local file.safetensors', or pretrained=False for random weights"
    )
