"""Passages of text."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

PROVIDER = "provider"
"""The attribute that names who provides a passage; exposure is summed by it."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage: the unit that is retrieved, ranked and shown to a model.

    Attributes:
        id: identifier, unique within its collection or request; 1 to 256 bytes, no control characters.
        text: body; together with the title at most 65,536 bytes, and not both empty.
        title: may be empty.
        attributes: free, such as ``provider``; at most 64 entries of at most 1,024 bytes.
    """

    id: str
    text: str
    title: str = ""
    attributes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def provider(self) -> str:
        """Return its provider; empty if unknown."""
        return self.attributes.get(PROVIDER, "")
