"""Imports of the process that tests fork from (`tests/forked.py`): all that a benchmark or a run of maps needs."""

from __future__ import annotations

import pytest  # noqa: F401 - of the test modules whose functions are run
import torch

import vitreous
import vitreous.bench.run_plan
import vitreous.mapping.run

torch.set_num_threads(1)  # other threads would be missing in the processes that are forked
vitreous.load("scenes")
vitreous.list_methods()
vitreous.list_metrics()
