"""The five services: what each is called, which module runs it, and what it needs of the others."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Service:
    """One service of the mesh.

    Attributes:
        name: short name.
        module: what ``python -m`` runs.
        offset: its port, counted from the orchestrator's.
        needs: the services it calls.
        thread_settings: its settings that say how many threads a model computes with; none without one.
    """

    name: str
    module: str
    offset: int
    needs: tuple[str, ...] = ()
    thread_settings: tuple[str, ...] = ()

    @property
    def prefix(self) -> str:
        """Prefix of its environment variables."""
        return f"RAGMESH_{self.name.upper()}_"


SERVICES: Final = (
    Service("generator", "services.generator", offset=3, thread_settings=("threads",)),
    Service("retriever", "services.retriever", offset=1, thread_settings=("encoder_threads",)),
    Service("reranker", "services.reranker", offset=2, needs=("generator",), thread_settings=("threads",)),
    Service("evaluator", "services.evaluator", offset=4),
    Service(
        "orchestrator",
        "orchestrator",
        offset=0,
        needs=("retriever", "reranker", "generator", "evaluator"),
    ),
)
"""In the order they are started: first what others need, of those first what takes longest."""

STOP_ORDER: Final = (("orchestrator",), ("reranker",), ("generator", "retriever", "evaluator"))
"""Who calls stops before who is called, so that what is in flight can end; a group stops together."""
