"""Tell Schemathesis how NDJSON is written, which it does not know.

``tests.openapi_cases`` names this file in ``SCHEMATHESIS_HOOKS``; nothing imports it.
"""

from __future__ import annotations

import json
from typing import Any, Final

import schemathesis

NDJSON: Final = "application/x-ndjson"


@schemathesis.hook
def before_load_schema(context: Any, raw_schema: dict[str, Any]) -> None:
    """Describe bodies of NDJSON as lists of their lines, for which OpenAPI 3.1 has no word."""
    for item in raw_schema["paths"].values():
        for operation in item.values():
            content = operation.get("requestBody", {}).get("content", {})
            if NDJSON in content:
                lines = {"type": "array", "items": content[NDJSON]["x-line-schema"]}
                content[NDJSON] = {"schema": lines}


@schemathesis.serializer(NDJSON)
def lines(context: Any, value: Any) -> bytes:
    """Write a body: each item on a line of its own, and what is no list on one line."""
    if isinstance(value, bytes):
        return value
    return "\n".join(json.dumps(one) for one in (value if isinstance(value, list) else [value])).encode()
