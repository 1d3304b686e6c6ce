"""The endpoints follow their OpenAPI document for any input."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings

from tests.web.conftest import SMALL, SMALL_MODEL, no_cost
from vitreous.web.app import create_app

schemathesis = pytest.importorskip("schemathesis", reason="fuzzing needs schemathesis, in vitreous[dev]")

from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

pytestmark = pytest.mark.slow
CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]
THERE = {"image": "pair-1-6", "model": SMALL_MODEL, "name": SMALL_MODEL, "method": "genatt"}
THERE |= {"methods": ["ixg", "rollout"], "targets": [6, 15], "target": 6, "removed": [0, 7]}
APP = create_app(replace(SMALL, demo=None), no_cost)
# the document itself: a request would start the worker's thread, which compiles shape checks while tests are collected,
# and Python 3.11 cannot compile in two threads at once
schema = schemathesis.openapi.from_dict(APP.openapi())
schema.app, schema.location = APP, "/openapi.json"
MODEST = settings(
    max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)


@schema.parametrize()
@MODEST
def test_any_request_is_answered_as_documented(case):
    case.headers = {**(case.headers or {}), "host": "localhost"}
    case.call_and_validate(checks=CHECKS)


@schema.include(
    path_regex="^/api/(prediction|explain|curve|layers|scores|python|preprocessed|evidence|image$|model)"
).parametrize()
@settings(MODEST, max_examples=6)
def test_requests_about_an_existing_image_are_answered_as_documented(case):
    """The same where model and image exist, so that the work itself is reached."""
    case.headers = {**(case.headers or {}), "host": "localhost"}
    there = {**THERE, "model": "scenes"} if case.path == "/api/evidence" else THERE  # known for the embedded models
    for part in (case.body, case.query):
        if isinstance(part, dict):
            part.update({key: value for key, value in there.items() if key in part})
    answer = case.call_and_validate(checks=CHECKS)
    if case.meta.generation.mode.is_positive:
        assert answer.status_code == 200, answer.text


def test_every_endpoint_documents_its_purpose_and_errors():
    document = APP.openapi()
    for path, verbs in document["paths"].items():
        for verb, about in verbs.items():
            assert about["description"], (verb, path)
            assert {"404", "413", "422", "429", "500", "504"} <= set(about["responses"]), (verb, path)
    assert "HTTPValidationError" not in document["components"]["schemas"]
