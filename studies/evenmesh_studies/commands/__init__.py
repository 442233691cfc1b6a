"""Commands of studies and load tests."""

from collections.abc import Sequence

from evenmesh.commands import Command


def commands() -> Sequence[Command]:
    """Return the commands of this distribution: its entry point in ``evenmesh.commands``."""
    from evenmesh_studies.commands.audit import audit
    from evenmesh_studies.commands.conversations import harvest
    from evenmesh_studies.commands.ensembles import eor
    from evenmesh_studies.commands.eval import evaluation
    from evenmesh_studies.commands.labels import label
    from evenmesh_studies.commands.load import bench

    return [audit, eor, label, harvest, evaluation(), bench()]
