"""What OpenAPI says of uploads."""

from __future__ import annotations

from typing import Any, Final

from evenmesh_gateway.http.events import MEDIA_TYPE as EVENTS
from evenmesh_gateway.openapi import event_schema, failures, timeout_parameter
from evenmesh_gateway.rest import JSON
from evenmesh_gateway.uploads.routes import FORM, PATH

_RESULT: Final = "UploadResult"
_PROGRESS: Final = "UploadProgress"
_COUNT: Final = {"type": "integer", "minimum": 0}
_LISTED: Final = "At most 1,000 are listed."


def paths() -> dict[str, Any]:
    """Return the path item of the route."""
    result = {"$ref": f"#/components/schemas/{_RESULT}"}
    progress = {"$ref": f"#/components/schemas/{_PROGRESS}"}
    statuses = failures()
    statuses["422"] = {**statuses["400"], "description": "No passage could be read; nothing was added."}
    statuses["501"] = {
        **statuses["501"],
        "description": "This gateway does not read documents: evenmesh-gateway[documents] brings what does.",
    }
    return {
        PATH: {
            "post": {
                "operationId": "uploadDocuments",
                "summary": "Read documents and add their passages to a collection.",
                "description": (
                    "Files are read in processes of their own and split along their structure. What cannot "
                    "be read is named in the result, with the reason. All passages are added, or none. Needs "
                    "the role ingest where callers are known. Counts two calls. With `Accept: "
                    "text/event-stream` the reply is events: what was done, then `end` with the result, or "
                    "`error` with a problem."
                ),
                "tags": ["documents"],
                "parameters": [
                    {
                        "name": "collection",
                        "in": "path",
                        "required": True,
                        "schema": {
                            "type": "string",
                            "pattern": "^[a-z0-9][a-z0-9_-]{0,63}$",
                            "maxLength": 64,
                        },
                    },
                    _query(
                        "provider", _rules(), "Rules that name the provider; the first that finds one counts."
                    ),
                    _query("attribute", _rules(), "Rules of other attributes, each NAME=RULE."),
                    _query(
                        "size",
                        {"type": "integer", "minimum": 16, "maximum": 2048},
                        "Largest passage. Unit: tokens of the gateway's tokenizer, or words.",
                    ),
                    _query(
                        "overlap",
                        {"type": "integer", "minimum": 0, "maximum": 1024},
                        "Tokens or words that the next passage repeats, at most half of `size`. Default: 0.",
                    ),
                    _query("base_url", {"type": "string", "maxLength": 1024}, "Text before addresses."),
                    _query("dry_run", _flag(False), "Read and answer what would be added; add nothing."),
                    _query("create", _flag(True), "Create the collection if it is missing."),
                    _query("wait", _flag(True), "Answer once all passages have vectors."),
                    timeout_parameter(),
                ],
                "requestBody": {
                    "required": True,
                    "description": "Files alone, as parts with a name. `/` stands between folders.",
                    "content": {
                        FORM: {
                            "schema": {
                                "type": "object",
                                "required": ["file"],
                                "properties": {
                                    "file": {
                                        "type": "array",
                                        "minItems": 1,
                                        "items": {
                                            "type": "string",
                                            "contentMediaType": "application/octet-stream",
                                        },
                                    }
                                },
                            }
                        }
                    },
                },
                "responses": {
                    "200": {
                        "description": "What was read, and added unless it was a dry run.",
                        "content": {
                            JSON: {"schema": result},
                            EVENTS: {"schema": event_schema({"anyOf": [progress, result]})},
                        },
                    },
                    **dict(sorted(statuses.items())),
                },
                "x-evenmesh": {"roles": ["ingest"], "retryable": True},
            }
        }
    }


def schemas() -> dict[str, Any]:
    """Return the schemas of the reply, by name."""
    collection = {"$ref": "#/components/schemas/evenmesh.retriever.v1.Collection"}
    read = _read()
    counts = {
        "added": {**_COUNT, "description": "Passages that were new."},
        "replaced": {**_COUNT, "description": "Passages that replaced one of the same id."},
        "unchanged": {**_COUNT, "description": "Passages that were there already."},
    }
    return {
        _RESULT: {
            "type": "object",
            "description": "What was read of an upload, and what became of it.",
            "required": ["dryRun", *read],
            "properties": {
                "dryRun": {"type": "boolean", "description": "Whether nothing was added."},
                **read,
                **counts,
                "collection": collection,
            },
        },
        _PROGRESS: {
            "type": "object",
            "description": "What was done by now; each event has one of these.",
            "properties": {
                "received": _object({"files": _COUNT, "bytes": _COUNT}, "All files are here."),
                "reading": _object({"done": _COUNT, "files": _COUNT}, "Files that are read, of those known."),
                "read": _object(read, "All files are read."),
                "sent": _object(
                    {"done": _COUNT, "passages": _COUNT}, "Passages that were sent to be indexed."
                ),
                "ingested": _object({**counts, "collection": collection}, "All passages are durable."),
                "embedding": _object({"collection": collection}, "Some passages still lack vectors."),
            },
        },
    }


def _read() -> dict[str, Any]:
    named = _object({"document": {"type": "string"}, "reason": {"type": "string"}})
    return {
        "files": {**_COUNT, "description": "Files that were read, those in archives among them."},
        "passages": {**_COUNT, "description": "Passages they were split into."},
        "size": {**_COUNT, "description": "Most that a passage has. Unit: `unit`."},
        "unit": {"type": "string", "enum": ["tokens", "words"]},
        "numProviders": {**_COUNT, "description": "Providers."},
        "providers": {
            "type": "array",
            "description": f"Providers, most passages first, each with one document. {_LISTED}",
            "items": _object(
                {"name": {"type": "string"}, "passages": _COUNT, "document": {"type": "string"}}
            ),
        },
        "rules": {
            "type": "object",
            "description": "Passages whose provider each rule found.",
            "additionalProperties": _COUNT,
        },
        "withoutProvider": {**_COUNT, "description": "Passages without a provider."},
        "oversize": {**_COUNT, "description": "Passages longer than `size`, because a row of a table is."},
        "numSkipped": {**_COUNT, "description": "Files that were not read."},
        "skipped": {"type": "array", "description": f"Those files, and why. {_LISTED}", "items": named},
        "numNotes": {**_COUNT, "description": "Notes on files that were read in part."},
        "notes": {
            "type": "array",
            "description": f"What of which file was not read. {_LISTED}",
            "items": named,
        },
        "numEmpty": {**_COUNT, "description": "Files without text."},
        "empty": {"type": "array", "description": f"Those files. {_LISTED}", "items": {"type": "string"}},
        "duplicates": _object(
            {"dropped": _COUNT, "mirrored": _COUNT, "near": _COUNT},
            "Passages left out, as their provider says the same already; texts of several providers; "
            "passages that are nearly the same as another, which stay.",
        ),
    }


def _object(properties: dict[str, Any], description: str = "") -> dict[str, Any]:
    said = {"description": description} if description else {}
    return {"type": "object", "required": list(properties), "properties": properties, **said}


def _query(name: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": schema}


def _rules() -> dict[str, Any]:
    return {"type": "array", "maxItems": 64, "items": {"type": "string", "minLength": 1, "maxLength": 1024}}


def _flag(default: bool) -> dict[str, Any]:
    return {"type": "boolean", "default": default}
