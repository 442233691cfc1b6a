"""OpenAPI 3.1 of REST, from the descriptors of the contract with their bounds and comments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from evenmesh.common.v1.method_options_pb2 import METERING_TOKENS, Role
from evenmesh.wire.bounds import bounds_of
from evenmesh_gateway.calls import TIMEOUT_HEADER
from evenmesh_gateway.http.events import MEDIA_TYPE as EVENTS
from evenmesh_gateway.http.problems import PROBLEM_TYPE
from evenmesh_gateway.methods import PublicMethod, public_methods
from evenmesh_gateway.rest import JSON, NDJSON, PREFIX

FAILURES: Final = (400, 401, 403, 404, 409, 413, 415, 429, 500, 501, 503, 504)
"""Statuses of requests that fail."""

_WORDS_OF_NUMBERS: Final = ["NaN", "Infinity", "-Infinity"]
_RANGES: Final = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_LONG: Final = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)
_REAL: Final = (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT)
_PROBLEM: Final[dict[str, Any]] = {
    "type": "object",
    "description": "What went wrong (RFC 9457), with what gRPC callers get.",
    "required": ["title", "status", "detail", "reason"],
    "properties": {
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "One line for a person."},
        "reason": {"type": "string", "description": "Machine-readable reason."},
        "code": {"type": "string", "description": "Canonical code of gRPC, such as INVALID_ARGUMENT."},
        "field": {"type": "string", "description": "Path of the field at fault."},
        "retry_after_s": {"type": "number", "description": "Time after which to try again. Seconds."},
    },
}


def document(paths: Mapping[str, Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    """Return the OpenAPI document of the gateway.

    Args:
        paths: path items of what is not made from the contract.
        schemas: their schemas, by name.
    """
    components: dict[str, Any] = {"Problem": _PROBLEM, **schemas}
    items: dict[str, Any] = dict(paths)
    for method in public_methods().values():
        _describe(method.descriptor.input_type, components)
        _describe(method.descriptor.output_type, components)
        items[f"{PREFIX}{method.path}"] = {"post": _operation(method)}
    services = sorted({method.service for method in public_methods().values()})
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "evenmesh",
            "version": "1",
            "description": "Every public method of the mesh as REST, made from its contract.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [
            {"name": "openai"},
            {"name": "documents"},
            *({"name": one, **_comment(one)} for one in services),
        ],
        "security": [{}, {"bearer": []}],
        "paths": items,
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def failures() -> dict[str, Any]:
    """Return the responses of requests that fail."""
    content = {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    headers = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}
    described: dict[str, Any] = {
        str(status): {"description": "A problem.", "content": content} for status in FAILURES
    }
    described["429"] = {**described["429"], "headers": headers}
    return described


def event_schema(data: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a server-sent event whose data are JSON of a schema, or a problem."""
    either = {"anyOf": [data, {"$ref": "#/components/schemas/Problem"}]}
    content = {"type": "string", "contentMediaType": JSON, "contentSchema": either}
    name = {"type": "string", "description": "`error` if the data are a problem."}
    return {"type": "object", "properties": {"event": name, "data": content}}


def timeout_parameter() -> dict[str, Any]:
    """Return the parameter of the time that a request may take."""
    return {
        "name": TIMEOUT_HEADER,
        "in": "header",
        "description": "Time that the request may take. Seconds.",
        "schema": {"type": "number", "exclusiveMinimum": 0},
    }


def _operation(method: PublicMethod) -> dict[str, Any]:
    facts = method.facts
    roles = [Role.Name(role).removeprefix("ROLE_").lower() for role in facts.roles]
    said = _comments()[method.descriptor.full_name]
    words = [said, f"Needs one of the roles {', '.join(roles)} where callers are known."]
    words.append("Counts calls and tokens." if facts.metering == METERING_TOKENS else "Counts calls.")
    if method.streams_requests:
        words.append("The body is NDJSON: one request on each line.")
    if method.streams_replies:
        words.append(
            "Each reply is the data of an event; the event `end` is the last, or `error` with a problem."
        )
    request = {"$ref": f"#/components/schemas/{method.descriptor.input_type.full_name}"}
    reply = {"$ref": f"#/components/schemas/{method.descriptor.output_type.full_name}"}
    return {
        "operationId": method.path.strip("/").replace("/", "."),
        "summary": _summary(said),
        "description": " ".join(words),
        "tags": [method.service],
        "parameters": [timeout_parameter()],
        "requestBody": {
            "required": method.streams_requests,
            "content": {NDJSON: {"schema": {"type": "string"}, "x-line-schema": request}}
            if method.streams_requests
            else {JSON: {"schema": request}},
        },
        "responses": {
            "200": {
                "description": "Events." if method.streams_replies else "The reply.",
                "content": {EVENTS: {"schema": event_schema(reply)}}
                if method.streams_replies
                else {JSON: {"schema": reply}},
            },
            **failures(),
        },
        "x-evenmesh": {
            "roles": roles,
            "retryable": facts.retryable,
            "max_request_bytes": facts.max_request_bytes,
        },
    }


def _describe(message: Descriptor, components: dict[str, Any]) -> None:
    """Add the schemas of a message and of all that it holds."""
    if message.full_name in components or message.full_name.startswith("google.protobuf."):
        return
    schema: dict[str, Any] = {"type": "object", "additionalProperties": False, "properties": {}}
    components[message.full_name] = schema
    for field in message.fields:
        schema["properties"][field.json_name] = {**_field(field, components), **_comment(field.full_name)}
    choices = [
        ", ".join(f"`{field.json_name}`" for field in one.fields)
        for one in message.oneofs
        if len(one.fields) > 1
    ]
    words = [_comments()[message.full_name], *(f"At most one of {one}." for one in choices)]
    schema["description"] = " ".join(words)


def _field(field: FieldDescriptor, components: dict[str, Any]) -> dict[str, Any]:
    bounds = bounds_of(field)
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        value = _value(inner.fields_by_name["value"], components)
        schema: dict[str, Any] = {"type": "object", "additionalProperties": value}
        if bounds.max_bytes:
            schema["additionalProperties"] = {**value, "maxLength": bounds.max_bytes}
        if bounds.max_pairs:
            schema["maxProperties"] = bounds.max_pairs
        if bounds.max_key_bytes:
            schema["propertyNames"] = {"maxLength": bounds.max_key_bytes}
        return schema
    schema = _value(field, components)
    if bounds.max_bytes:
        schema = {**schema, "maxLength": bounds.max_bytes}
    if field.is_repeated:
        schema = {"type": "array", "items": schema}
        if bounds.max_items:
            schema["maxItems"] = bounds.max_items
    return schema


def _value(field: FieldDescriptor, components: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of one value of a field, in the JSON mapping of protobuf."""
    if (inner := field.message_type) is not None:
        if inner.full_name == "google.protobuf.Timestamp":
            return {"type": "string", "format": "date-time"}
        _describe(inner, components)
        return {"$ref": f"#/components/schemas/{inner.full_name}"}
    if field.enum_type is not None:
        return _enum(field.enum_type, components)
    kind = field.cpp_type
    if kind in _RANGES:
        low, high = _RANGES[kind]
        number = {"type": "integer", "minimum": low, "maximum": high}
        if kind in _LONG:  # written as text, as JavaScript's numbers are too short
            return {"anyOf": [number, {"type": "string", "pattern": "^-?[0-9]{1,20}$"}]}
        return number
    if kind in _REAL:
        return {"anyOf": [{"type": "number"}, {"type": "string", "enum": _WORDS_OF_NUMBERS}]}
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return {"type": "boolean"}
    if field.type == FieldDescriptor.TYPE_BYTES:
        return {"type": "string", "contentEncoding": "base64"}
    return {"type": "string"}


def _enum(enum: EnumDescriptor, components: dict[str, Any]) -> dict[str, Any]:
    names = [value.name for value in enum.values]
    said = [f"`{name}`: {_comments()[f'{enum.full_name}.{name}']}" for name in names]
    schema = {
        "type": "string",
        "enum": names,
        "description": "\n\n".join([_comments()[enum.full_name], *said]),
    }
    components.setdefault(enum.full_name, schema)
    return {"$ref": f"#/components/schemas/{enum.full_name}"}


@cache
def _comments() -> Mapping[str, str]:
    """Return the comments of the protos by full name; ``make proto`` writes them."""
    text = resources.files("evenmesh_gateway").joinpath("descriptions.json").read_text("utf-8")
    comments: dict[str, str] = json.loads(text)
    return comments


def _comment(name: str) -> dict[str, str]:
    return {"description": _comments()[name]}


def _summary(comment: str) -> str:
    """Return the first sentence of a comment."""
    return comment.partition(". ")[0].rstrip(".") + "."
