"""The services: what each is called, which module runs it, and what it needs of the others."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final


class GeneratorEngine(StrEnum):
    """What computes the generator's answers: its own process, or a Triton server beside it."""

    IN_PROCESS = "in-process"
    TRITON = "triton"


@dataclass(frozen=True, slots=True)
class Service:
    """One service of the mesh.

    Attributes:
        name: short name.
        module: what ``python -m`` runs.
        offset: its port, counted from the orchestrator's.
        needs: the services it calls.
        thread_settings: its settings that say how many threads a model computes with; none without one.
        arguments: what follows the module on the command line.
        settings: settings of it that are fixed: name and value.
        scheme: what callers are told before its address.
    """

    name: str
    module: str
    offset: int
    needs: tuple[str, ...] = ()
    thread_settings: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    scheme: str = "dns:///"

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

TRITON: Final = Service(
    "triton",
    "services.generator.triton",
    offset=5,
    thread_settings=("threads",),
    arguments=("serve",),
    scheme="",
)
"""The Triton server of the generator's models; only the generator calls it."""

TRAINER: Final = Service(
    "trainer",
    "services.reranker.online",
    offset=6,
    needs=("retriever", "reranker"),
    thread_settings=("threads",),
)
"""What learns from agents' feedback while the mesh runs; nobody calls it."""

STOP_ORDER: Final = (
    ("orchestrator", "trainer"),
    ("reranker",),
    ("generator", "retriever", "evaluator"),
    ("triton",),
)
"""Who calls stops before who is called, so that what is in flight can end; a group stops together."""


def services_with(engine: GeneratorEngine, *, learn: bool = False) -> tuple[Service, ...]:
    """The services of a mesh, in the order they are started.

    Args:
        engine: what computes answers.
        learn: whether a trainer learns from agents' feedback.
    """
    settings = (("engine", engine.value),)
    needs = ("triton",) if engine is GeneratorEngine.TRITON else ()
    five = tuple(
        replace(service, needs=needs, settings=settings) if service.name == "generator" else service
        for service in SERVICES
    )
    with_engine = (TRITON, *five) if engine is GeneratorEngine.TRITON else five
    return (*with_engine, TRAINER) if learn else with_engine
