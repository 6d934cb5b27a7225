"""The OpenAPI document is true: generated requests get documented responses of the documented shape."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import schemathesis
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections, transaction
from django.utils import timezone
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from dashboard.api.models import ApiToken, Scope
from dashboard.api.v1 import schema as made_schema
from dashboard.runs import services

pytestmark = pytest.mark.django_db

# A request that is valid by the schema may still be refused: the schema does not cover rules between fields or the size
# of the fleet.
CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
)


LONG: dict[str, Any] = {"path": ["/api/v1/runs", "/api/v1/studies"], "method": "POST"}
"""A spec has so many fields that requests at the limits of its schema outnumber all other requests."""


def documented(**phases: dict[str, bool]) -> BaseSchema:
    """Calls the application in-process, so requests run in the test's own transaction."""
    config = schemathesis.Config.from_dict({"phases": phases})
    application = get_wsgi_application()
    loaded = schemathesis.openapi.from_dict(made_schema(), config=config)  # only who has signed in is sent it
    loaded.app = application
    return loaded


schema = documented()
drawn_only = documented(coverage={"enabled": False})
FEW = settings(max_examples=8, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))


@pytest.fixture
def one_connection() -> Iterator[None]:
    """Keeps a request from closing the connection that holds the test's transaction, as Django's own test client
    does.
    """
    signals = (request_started, request_finished)
    for signal in signals:
        signal.disconnect(close_old_connections)
    yield
    for signal in signals:
        signal.connect(close_old_connections)


@pytest.fixture
def tokens(alice: Any, admin: Any) -> dict[str, str]:
    services.submit(owner=alice, spec={}, name="there")
    expires = timezone.now() + timedelta(days=1)
    owners = {Scope.SUBMIT: alice, Scope.WORKER: admin}
    return {
        scope: ApiToken.make(user=user, name="fuzz", scope=scope, expires_at=expires)[1]
        for scope, user in owners.items()
    }


@schema.exclude(**LONG).parametrize()
@FEW
@pytest.mark.usefixtures("one_connection")
def test_answers_are_the_documented_ones(case: Any, tokens: dict[str, str]) -> None:
    answer(case, tokens)


@drawn_only.include(**LONG).parametrize()
@FEW
@pytest.mark.usefixtures("one_connection")
def test_specs_are_taken_or_refused_as_documented(case: Any, tokens: dict[str, str]) -> None:
    answer(case, tokens)


@schema.include(**LONG).parametrize()
@FEW
@pytest.mark.full
@pytest.mark.usefixtures("one_connection")
def test_specs_at_every_edge_are_taken_or_refused_as_documented(case: Any, tokens: dict[str, str]) -> None:
    answer(case, tokens)


def answer(case: Any, tokens: dict[str, str]) -> None:
    """Sends the request and raises if the response is not one of the documented ones."""
    scope = Scope.WORKER if "/blobs/" in case.path else Scope.SUBMIT
    # RunSpec reads "4" and 4 alike, for forms and hand-written files; a JSON schema cannot express that leniency.
    checks = CHECKS[:-1] if case.method == "POST" else CHECKS
    # Called in-process, nothing would decompress the response.
    headers = {"Authorization": f"Bearer {tokens[scope]}", "Accept-Encoding": "identity"}
    # All requests share one yard: hundreds of accepted runs in its queue would slow down the later requests.
    with transaction.atomic():
        case.call_and_validate(checks=list(checks), headers=headers)
        transaction.set_rollback(True)
