"""Imports of the process that tests fork from (`tests/forked.py`): all that a benchmark or a run of maps needs."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest  # noqa: F401 - of the test modules whose functions are run
import torch

import vitreous
import vitreous.mapping.run
from tests.bench.fixture import fill

torch.set_num_threads(1)  # other threads would be missing in the processes that are forked
vitreous.list_methods()
vitreous.list_metrics()
with TemporaryDirectory() as folder:  # what is imported or loaded where it is first used; one cell loads the model
    fill(Path(folder), datasets=["scenes:single?count=1"])
