"""How much collections and tenants may hold."""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from meshkit.errors import MeshError


@dataclass(frozen=True, slots=True)
class Usage:
    """What a collection or a tenant holds."""

    passages: int
    """Passages that are there."""
    bytes: int
    """Their ids, titles, texts and attributes. Bytes."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.passages + other.passages, self.bytes + other.bytes)


@dataclass(frozen=True, slots=True)
class Limit:
    """A bound, and the setting it comes from."""

    most: int
    """Unit: that of what is bounded; 0 for no bound."""
    setting: str


@dataclass(frozen=True, slots=True)
class Quotas:
    """Bounds on what may be held; by default there are none."""

    collection_passages: Limit = Limit(0, "")
    collection_bytes: Limit = Limit(0, "")
    tenant_passages: Limit = Limit(0, "")
    tenant_bytes: Limit = Limit(0, "")

    def check(self, name: str, collection: Usage, tenant: Usage) -> None:
        """Refuses what would be too much.

        Args:
            name: name of the collection.
            collection: what it would hold.
            tenant: what its tenant would hold in all.

        Raises:
            MeshError: RESOURCE_EXHAUSTED, naming the setting.
        """
        for what, unit, would_hold, limit in (
            (f"collection {name!r}", "passages", collection.passages, self.collection_passages),
            (f"collection {name!r}", "bytes of passages", collection.bytes, self.collection_bytes),
            ("the tenant", "passages", tenant.passages, self.tenant_passages),
            ("the tenant", "bytes of passages", tenant.bytes, self.tenant_bytes),
        ):
            if limit.most and would_hold > limit.most:
                raise MeshError(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    "QUOTA_EXCEEDED",
                    f"{what} would hold {would_hold} {unit} and may hold {limit.most}: nothing was kept; "
                    f"delete some, or raise {limit.setting}",
                )
