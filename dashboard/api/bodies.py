"""What all bodies of the API's requests have in common."""

from __future__ import annotations

from ninja import Schema
from pydantic import ConfigDict

from parallel_core.truth_values import TypesOfJson


class Body(TypesOfJson, Schema):
    """The body of a request: it has no fields but those of its class, and each has the type that the schema says."""

    model_config = ConfigDict(extra="forbid")
