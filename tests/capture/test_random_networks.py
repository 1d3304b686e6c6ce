"""Random small networks are explained rightly, with a caution, or refused; never wrongly.

`python -m tests.capture.judge_networks --draws 2000` judges more of them.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from tests.capture.judge_networks import judge
from tests.capture.random_networks import (
    Description,
    descriptions,
)

pytestmark = pytest.mark.slow


@settings(max_examples=60, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(descriptions())
def test_no_map_of_a_random_network_is_wrong(description: Description) -> None:
    verdict = judge(description)

    assert verdict.kind != "wrong", verdict.why
