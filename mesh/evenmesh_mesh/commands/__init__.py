"""Commands that run a mesh on this machine."""

from collections.abc import Sequence

from evenmesh.commands import Command


def commands() -> Sequence[Command]:
    """Return the commands of this distribution: its entry point in ``evenmesh.commands``."""
    from evenmesh_mesh.commands.backup import backup, restore
    from evenmesh_mesh.commands.demo import demo
    from evenmesh_mesh.commands.doctor import doctor
    from evenmesh_mesh.commands.mesh import console, down, status, up
    from evenmesh_mesh.commands.security import certs, keys

    return [demo, up, down, status, console, doctor, backup, restore, certs(), keys()]
