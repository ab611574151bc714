"""Requests made from the OpenAPI document, right and wrong ones, and answers held against it (schemathesis)."""

import time
from typing import Any

import schemathesis
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from engine.config import ROOT
from tests.hostile.campaign import ANSWER_SECONDS, Finding, Outcome
from tests.hostile.requests import drawn

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def fuzz(url: str, count: int, outcome: Outcome, *, seed: int = 0) -> None:
    """Send so many requests for each operation, right and wrong ones each."""
    for each in schemathesis.openapi.from_path(ROOT / "docs" / "openapi.json").get_all_operations():
        operation: Any = each.ok()  # type: ignore[union-attr]  # or raises
        modes = [GenerationMode.POSITIVE, *([GenerationMode.NEGATIVE] if operation.body else [])]
        for mode in modes:
            for case in drawn(operation.as_strategy(generation_mode=mode), count, seed):
                _send(url, case, outcome)


def _send(url: str, case: Case[Any], outcome: Outcome) -> None:
    source = f"{case.method} {case.path} {case.media_type or ''} {case.body!r}"[:300]
    begun = time.monotonic()
    answer = case.call(base_url=url, timeout=ANSWER_SECONDS)
    outcome.note("OpenAPI document", str(answer.status_code), source, time.monotonic() - begun, answer.text)
    try:
        case.validate_response(answer, checks=CHECKS)
    except FailureGroup as failures:
        told = "; ".join(f"{failure.title}: {failure.message}" for failure in failures.exceptions)
        outcome.findings.append(Finding("undocumented answer", source, told[:500]))
