"""What ends an answer of a server of models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evenmesh_generator.domain import Decoding


def stops(further: Mapping[str, Any], decoding: Decoding) -> dict[str, list[str]]:
    """Return the field ``stop`` of a request: the texts of the operator's ``further`` fields, then those of
    ``decoding``; nothing if the latter has none.
    """
    if not decoding.stop:
        return {}
    stated = further.get("stop") or []
    return {"stop": [*([stated] if isinstance(stated, str) else stated), *decoding.stop]}
