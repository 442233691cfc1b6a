"""List the services: names, modules, ports and dependencies."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Literal


class GeneratorEngine(StrEnum):
    """Where the generator's models run: in its own process, on a Triton server beside it, or on servers that
    others started.
    """

    IN_PROCESS = "in-process"
    TRITON = "triton"
    OPENAI = "openai"


@dataclass(frozen=True, slots=True)
class Service:
    """One service of the mesh.

    Attributes:
        name: short name.
        module: module that ``python -m`` runs.
        offset: its port relative to the orchestrator's.
        needs: services that it calls.
        thread_settings: its settings for the number of compute threads; empty for a service without a model.
        arguments: command-line arguments after the module.
        settings: its fixed settings: name and value.
        scheme: prefix of its address for callers.
        nice: how far it yields the processors to the other services, as ``nice`` counts, [0, 19].
        health: how it reports its health: by gRPC's protocol, or ``GET /readyz``.
    """

    name: str
    module: str
    offset: int
    needs: tuple[str, ...] = ()
    thread_settings: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    scheme: str = "dns:///"
    nice: int = 0
    health: Literal["grpc", "http"] = "grpc"

    @property
    def prefix(self) -> str:
        """Prefix of its environment variables."""
        return f"EVENMESH_{self.name.upper()}_"


SERVICES: Final = (
    Service("generator", "evenmesh_generator", offset=3, thread_settings=("threads",)),
    Service("retriever", "evenmesh_retriever", offset=1, thread_settings=("encoder_threads",)),
    Service("reranker", "evenmesh_reranker", offset=2, needs=("generator",), thread_settings=("threads",)),
    Service("evaluator", "evenmesh_evaluator", offset=4, nice=10),  # asks do not wait for what it measures
    Service(
        "orchestrator",
        "evenmesh_orchestrator",
        offset=0,
        needs=("retriever", "reranker", "generator", "evaluator"),
    ),
)
"""The services in start order: first those that others need, and of these the slowest."""

TRITON: Final = Service(
    "triton",
    "evenmesh_generator.triton",
    offset=5,
    thread_settings=("threads",),
    arguments=("serve",),
    scheme="",
)
"""The Triton server of the generator's models; only the generator calls it."""

TRAINER: Final = Service(
    "trainer",
    "evenmesh_training.online",
    offset=6,
    needs=("retriever", "reranker"),
    thread_settings=("threads",),
)
"""The online trainer, which learns from agents' feedback while the mesh runs; nobody calls it."""

GATEWAY: Final = Service(
    "gateway",
    "evenmesh_gateway",
    offset=10,
    needs=("orchestrator", "retriever", "reranker", "generator", "evaluator"),
    health="http",
)
"""The HTTP gateway, for clients that speak no gRPC."""

STOP_ORDER: Final = (
    ("gateway",),
    ("orchestrator", "trainer"),
    ("reranker",),
    ("generator", "retriever", "evaluator"),
    ("triton",),
)
"""Stop order, by groups: callers stop before the services they call, so that calls in flight can end."""


def services_with(
    engine: GeneratorEngine, *, learn: bool = False, gateway: bool = False
) -> tuple[Service, ...]:
    """Return the services of a mesh in start order.

    Args:
        engine: where the generator's models run.
        learn: whether to run the online trainer.
        gateway: whether to run the HTTP gateway.
    """
    settings = (("engine", engine.value),)
    needs = ("triton",) if engine is GeneratorEngine.TRITON else ()
    five = tuple(
        replace(service, needs=needs, settings=settings) if service.name == "generator" else service
        for service in SERVICES
    )
    with_engine = (TRITON, *five) if engine is GeneratorEngine.TRITON else five
    more = (*((TRAINER,) if learn else ()), *((GATEWAY,) if gateway else ()))
    return (*with_engine, *more)
