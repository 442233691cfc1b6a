"""The commands of this distribution."""

from collections.abc import Sequence

from evenmesh.commands import Command


def commands() -> Sequence[Command]:
    """Return the commands of this distribution: its entry point in ``evenmesh.commands``."""
    from evenmesh_gateway.agents.command import mcp

    return [mcp]
