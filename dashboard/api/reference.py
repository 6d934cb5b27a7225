"""The API reference page: every operation of the OpenAPI schema, its parameters, and a curl command for it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard.api.auth import ReadToken, SubmitToken, WorkerToken
from dashboard.api.models import ApiToken
from dashboard.api.v1 import schema as made_schema
from dashboard.runs.models import Run
from dashboard.studies.models import Study
from dashboard.traces.models import Trace

Schema = Mapping[str, Any]
NEEDS = {kind.__name__: kind.needs for kind in (ReadToken, SubmitToken, WorkerToken)}
"""Name of a security scheme in the OpenAPI schema -> the scope that a token must have."""
TITLES = {"runs": "Runs", "corpora": "Texts to train on", "traces": "Traces", "studies": "Studies", "fleet": "Fleet"}


@dataclass(frozen=True)
class Parameter:
    """One input of an operation; `place` says where it goes: path, query or body."""

    name: str
    place: str
    kind: str
    required: bool
    about: str


@dataclass(frozen=True)
class Operation:
    """One HTTP method of one path."""

    tag: str
    method: str
    path: str
    about: str
    scope: str
    parameters: list[Parameter]
    curl: str

    @property
    def short(self) -> str:
        """The first sentence of `about`."""
        return f"{self.about.partition('. ')[0].removesuffix('.')}."

    @property
    def key(self) -> str:
        """The operation's id on the page."""
        return f"{self.method.lower()}{self.path.replace('/api/v1', '').replace('/', '-').strip('{}')}"


@dataclass(frozen=True)
class Group:
    """The operations of one tag."""

    title: str
    operations: list[Operation]


@require_safe
def page(request: HttpRequest) -> HttpResponse:
    """The reference page. Ids in the examples are those of this yard's newest run, study and trace."""
    every: dict[str, QuerySet[Any]] = {
        "run_id": Run.objects.all(),
        "study_id": Study.objects.all(),
        "trace_id": Trace.objects.all(),
    }
    known = {name: rows.order_by("-pk").values_list("pk", flat=True).first() for name, rows in every.items()}
    address = request.build_absolute_uri("/").rstrip("/")
    operations = sorted(operations_of(made_schema(), address, known), key=lambda one: list(TITLES).index(one.tag))
    groups = [Group(TITLES[tag], list(own)) for tag, own in groupby(operations, key=lambda one: one.tag)]
    tokens = [one for one in ApiToken.objects.filter(user=request.user) if not one.expired]  # type: ignore[misc]
    count = len(operations)
    return render(request, "api/reference.html", {"groups": groups, "tokens": tokens, "count": count, "host": address})


def operations_of(schema: Schema, address: str, known: Mapping[str, Any]) -> Iterator[Operation]:
    """Yields every operation that people use; those of workers are left out. `known`: path parameter -> value for
    examples."""
    for path, methods in schema["paths"].items():
        for method, described in methods.items():
            scope = next((NEEDS[name] for scheme in described["security"] for name in scheme if name in NEEDS), None)
            if scope is None or described["tags"][0] not in TITLES:
                continue
            body = Body.of(schema, described)
            example = _filled(path, known) if method != "delete" else path  # a pasted DELETE must not hit a real object
            yield Operation(
                tag=described["tags"][0],
                method=method.upper(),
                path=path,
                about=unbroken(described.get("description", "").replace("`", "")),
                scope=scope,
                parameters=[_parameter(schema, one) for one in described.get("parameters", ())] + body.fields,
                curl=_curl(method.upper(), address + example, body),
            )


def unbroken(text: str) -> str:
    """The text with no line break inside of its numbers: `20 000` as other pages write it."""
    return re.sub(r"(?<=\d) (?=\d{3}\b)", "\N{NO-BREAK SPACE}", text)


@dataclass(frozen=True)
class Body:
    """A request body: its fields, and in `given` curl's arguments for an example of it."""

    fields: list[Parameter]
    given: tuple[str, ...] = ()

    @classmethod
    def of(cls, schema: Schema, described: Schema) -> Body:
        """Returns the body of an operation of the OpenAPI schema; one without fields where it takes none."""
        for form, content in described.get("requestBody", {}).get("content", {}).items():
            model = _followed(schema, content["schema"])
            fields = [_field(schema, name, one, model) for name, one in model.get("properties", {}).items()]
            if form == "multipart/form-data":
                return cls(fields, tuple(f"-F {name}=@FILE" for name in model.get("required", ())))
            example = json.dumps(model.get("example") or {name: name.upper() for name in model.get("required", ())})
            return cls(fields, ("-H 'Content-Type: application/json'", f"-d {shlex.quote(example)}"))
        return cls([])


def _field(schema: Schema, name: str, field: Schema, model: Schema) -> Parameter:
    about = field.get("description") or _followed(schema, field).get("description", "")
    first = unbroken(about.split("\n")[0])
    return Parameter(name, "body", _kind(schema, field), name in model.get("required", ()), first)


def _parameter(schema: Schema, described: Schema) -> Parameter:
    about = unbroken(described.get("description", ""))
    return Parameter(
        described["name"], described["in"], _kind(schema, described["schema"]), described.get("required", False), about
    )


def _followed(schema: Schema, part: Schema) -> Schema:
    """Returns the schema that `part` refers to by `$ref`, or `part` itself."""
    while "$ref" in part:
        part = schema["components"]["schemas"][part["$ref"].rpartition("/")[2]]
    return part


def _kind(schema: Schema, part: Schema) -> str:
    """Returns the type with its limits and default in words: `integer, 1 to 500, else 50`."""
    own = _followed(schema, part)
    choices = [one for one in own.get("anyOf", ()) if one.get("type") != "null"]
    if choices:
        return _kind(schema, {**choices[0], **{k: v for k, v in own.items() if k == "default"}})
    if "enum" in own:
        kind = "one of " + ", ".join(map(str, own["enum"]))
    elif own.get("type") == "array":
        kind = f"list of {_kind(schema, own['items'])}"
    else:
        kind = "file" if own.get("format") == "binary" else str(own.get("type", "value"))
    least, most = (next((own[name] for name in names if name in own), None) for names in (LEAST, MOST))
    limits = "" if least is None or most is None or most > MOST_SAID else f", {_plain(least)} to {_plain(most)}"
    default = own.get("default")
    return f"{kind}{limits}{'' if default in (None, '', []) else f', else {json.dumps(default)}'}"


LEAST, MOST = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
MOST_SAID = 10**15
"""Limits above this are those of a machine integer and tell a reader nothing, so they are left out."""


def _plain(number: float) -> str:
    """Returns the number with spaces between thousands."""
    return f"{number:,}".replace(",", " ")


def _filled(path: str, known: Mapping[str, Any]) -> str:
    """Returns the path with the values of `known` for its parameters (1 where there is none)."""
    for name, value in known.items():
        path = path.replace(f"{{{name}}}", str(value or 1))
    return path


def _curl(method: str, url: str, body: Body) -> str:
    asked = [] if method == ("POST" if body.given else "GET") else [f"-X {method}"]
    return " ".join(["curl", *asked, '-H "Authorization: Bearer $TOKEN"', *body.given, url])
