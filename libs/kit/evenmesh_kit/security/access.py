"""Read from the contract which roles may call a method."""

from __future__ import annotations

from evenmesh.common.v1 import method_options_pb2
from evenmesh.wire.methods import facts_of
from evenmesh_kit.security.caller import Role


def roles_of(method: str) -> frozenset[Role]:
    """Return the roles that may call ``/package.Service/Method``, besides ADMIN and SERVICE.

    Empty for a method whose proto states none: only ADMIN and SERVICE may call it.
    """
    name = method_options_pb2.Role.Name
    return frozenset(Role[name(role).removeprefix("ROLE_")] for role in facts_of(method).roles)
