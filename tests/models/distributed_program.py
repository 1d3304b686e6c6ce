"""Explain a model inside a real `DistributedDataParallel`, in a process group of one; started by `test_wrapping`.

Exits with 77 if this machine cannot start a process group: gloo needs a loopback interface that is up.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import vitreous
from tests.models.families import build, pictures
from tests.models.test_wrapping import images, swin
from vitreous.models.vit import ViT
from vitreous.testing import fingerprint

UNAVAILABLE = 77


def main(folder: Path) -> int:
    try:
        dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), 1), rank=0, world_size=1)
    except RuntimeError as problem:
        print(f"no process group: {str(problem).splitlines()[0]}")
        return UNAVAILABLE
    try:
        for module, inputs, kind in ((build("vit"), pictures(), ViT), (swin(), images(), vitreous.Network)):
            expected = vitreous.explain(module, inputs, 1, "decompx+plus").patches
            distributed = DistributedDataParallel(module)
            before = fingerprint(distributed)

            described = vitreous.wrap(distributed)
            attribution = vitreous.explain(distributed, inputs, 1, "decompx+plus")

            assert type(described) is kind
            assert described.module is module
            assert torch.equal(attribution.patches, expected)
            assert fingerprint(distributed) == before
            distributed.train()(inputs).sum().backward()  # training can continue afterwards
            assert all(p.grad is not None for p in module.parameters() if p.requires_grad)
    finally:
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
