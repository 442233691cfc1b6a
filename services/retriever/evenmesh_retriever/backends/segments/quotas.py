"""Limit what collections and tenants may hold."""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from evenmesh.wire.errors import MeshError


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
    tenant_collections: Limit = Limit(0, "")
    collections: Limit = Limit(0, "")

    def check_number(self, of_tenant: int, of_all: int) -> None:
        """Refuse one more collection where there are as many as may be.

        Args:
            of_tenant: collections that the tenant has.
            of_all: collections that there are.

        Raises:
            MeshError: RESOURCE_EXHAUSTED, naming the setting.
        """
        most, setting = self.tenant_collections.most, self.tenant_collections.setting
        if most and of_tenant >= most:
            raise _exceeded(
                f"the tenant has {of_tenant} collections and may have {most}: delete one, or raise {setting}"
            )
        if self.collections.most and of_all >= self.collections.most:
            # How many there are is nobody's business: it would tell what other tenants do.
            raise _exceeded(f"the server keeps no more collections: raise {self.collections.setting}")

    def check(self, name: str, collection: Usage, tenant: Usage) -> None:
        """Refuse what would be too much.

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


def _exceeded(message: str) -> MeshError:
    return MeshError(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED", message)
