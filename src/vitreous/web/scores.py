"""Raw scores to take away: JSON, and safetensors that `Attribution.load` reads."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

from vitreous.web.answers import numbers

if TYPE_CHECKING:
    from vitreous.methods.attribution import Attribution


def joined(rows: Sequence[Attribution]) -> Attribution:
    """The classes of one method as one attribution; of a checkpoint only its name is kept."""
    from vitreous.front import join

    found = join(list(rows))
    about = dict(found.provenance)
    if "checkpoint" in about:
        about["checkpoint"] = Path(str(about["checkpoint"])).name
    return replace(found, names=tuple(name for one in rows for name in one.names or ()), provenance=about)


def as_json(found: Sequence[Attribution]) -> bytes:
    return json.dumps({"maps": [plain(one) for one in found]}, indent=1, ensure_ascii=False).encode()


def plain(found: Attribution) -> dict[str, Any]:
    own = found.patches if found.native_pixels is None else found.native_pixels
    assert own is not None
    assert found.logits is not None
    return {
        "method": found.method,
        "grid": list(found.layout.grid),
        "signed": found.signed,
        "provenance": dict(found.provenance),
        "classes": [
            {
                "index": int(found.targets[row]),
                "name": found.names[row] if found.names else None,
                "probability": numbers(found.logits[row].double().softmax(-1)[found.targets[row]])[0],
                "scores": numbers(own[row]),
                "shape": list(own[row].shape),
            }
            for row in range(len(found))
        ],
    }


def as_archive(found: Sequence[Attribution]) -> bytes:
    """A zip with one safetensors file per method."""
    stream = BytesIO()
    with TemporaryDirectory() as folder, ZipFile(stream, "w") as archive:
        for number, one in enumerate(found):
            name = re.sub(r"[^\w+@=.-]+", "-", one.method).strip("-")[:80]
            archive.write(one.save(Path(folder) / f"{number}.safetensors"), f"{number + 1}-{name}.safetensors")
    return stream.getvalue()
