"""API operations on links between hosts: list what was measured, and ask for a measurement of a pair."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Annotated, Any

from django.http import HttpRequest
from ninja import Router, Schema, Status
from pydantic import Field

from dashboard.api import schemas as s
from dashboard.api.auth import READ, SUBMIT, require_member
from dashboard.api.bodies import Body
from dashboard.api.idempotency import Key, made_once
from dashboard.api.runs import MADE, RUNS, detail
from dashboard.ledger import host_links, models
from dashboard.runs import linking
from parallel_core.profile.curves import Link, LinksBetween

router = Router(tags=["fleet"])
Name = Annotated[str, Field(min_length=1, max_length=120, pattern=r"^[^\x00]*$", description="of a worker")]


class LinksIn(Body):
    """Names of two workers that send heartbeats."""

    first: Name
    second: Name


class LinkOut(Schema):
    """One kind of message among `ranks` ranks, evenly over `hosts` hosts: the `seconds` for each of `sizes` (bytes),
    the latency of the smallest, and the rate from a sixteenth of the largest on."""

    what: str
    ranks: int
    hosts: int
    latency_s: float
    bytes_per_s: float | None = Field(description="null where larger messages took no longer")
    sizes: list[float]
    seconds: list[float]


class LinksOut(Schema):
    """The newest measurement for a pair of hosts and a kind of device, by `run` (null if it was deleted)."""

    hosts: list[str]
    device: str
    software: str
    measured_at: datetime
    run: int | None
    links: list[LinkOut]


@router.get("", auth=READ, response={200: s.Envelope[list[LinksOut]], **s.refusals(401, 403)})
def list_links(request: HttpRequest) -> Any:
    """The newest measurement for each pair of hosts and kind of device. Predictions of runs over several hosts use
    them."""
    return {"data": [_pair(row) for row in host_links.newest()]}


@router.post("", auth=SUBMIT, response={**MADE, **s.refusals(400, 401, 403, 413, 422)})
def time_links(request: HttpRequest, payload: LinksIn, key: Key = None) -> Any:
    """Queues a run that times messages between two workers while nothing else runs there. If one for this pair has not
    ended yet, that one is returned. 422 with the field if the two cannot be timed."""
    require_member(request)
    make = partial(linking.submit, owner=request.user, first=payload.first, second=payload.second)
    status, run = made_once(request, key, payload.model_dump_json().encode(), RUNS, lambda also: make(also=also))
    return Status(status, {"data": detail(run)})


def _pair(row: models.LinksBetween) -> dict[str, Any]:
    found = LinksBetween.model_validate(row.table)
    return {
        "hosts": list(found.hosts),
        "device": row.device,
        "software": found.software,
        "measured_at": row.measured_at,
        "run": row.run_id,
        "links": [_link(link) for link in found.links],
    }


def _link(link: Link) -> dict[str, Any]:
    alpha, beta = link.time.line
    grows = beta * link.time.sizes[-1] > 1e-9 * link.time.seconds[-1]  # anything less is rounding
    return {
        **{name: getattr(link, name) for name in ("what", "ranks", "hosts")},
        "latency_s": alpha,
        "bytes_per_s": 1 / beta if grows else None,
        **{name: list(getattr(link.time, name)) for name in ("sizes", "seconds")},
    }
