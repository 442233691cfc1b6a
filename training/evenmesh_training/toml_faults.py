"""Say what is wrong with the values of a TOML file."""

from __future__ import annotations

from pydantic import ValidationError


def faults_of(error: ValidationError, whole: str) -> list[str]:
    """Return each fault, with the place it is at.

    A list of which an entry is at fault counts as too short too, as that entry is not in it: this is left
    out.

    Args:
        error: what was found.
        whole: what stands for the place of a fault of the whole file.
    """
    found = error.errors()
    return [
        f"{'.'.join(map(str, one['loc'])) or whole}: {one['msg']}"
        for one in found
        if one["type"] != "too_short"
        or not any(other["loc"][: len(one["loc"])] == one["loc"] for other in found if other is not one)
    ]
