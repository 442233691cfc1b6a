"""How a model's scores are fused with those of a first stage: for all agents, or for an agent in its own way.

``config.json`` of a model says it in the field :data:`FIELD`: an object with ``weight``, ``neighbors``,
``slope`` and ``intercept`` (:class:`evenmesh_reranker.domain.Fusion`), and in ``agents`` such objects with
``task_id`` and ``model_id``, of agents whose feedback chose other numbers.

The version of an agent's own changes may have a fusion too, in the file :data:`FILE`: the object alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from evenmesh_core.arrays import FloatArray
from evenmesh_core.fusion import log_odds_fusion
from evenmesh_kit.compute.model_files import ModelError, one_line
from evenmesh_reranker.domain import Agent, Fusion

if TYPE_CHECKING:
    from scipy.sparse import csr_array

FIELD: Final = "evenmesh_fusion"
AGENTS: Final = "agents"
FILE: Final = "fusion.json"
NONE: Final = Fusion(0.0)
"""The model's scores alone."""
_IDS: Final = ("task_id", "model_id")


@dataclass(frozen=True, slots=True)
class Fusions:
    """The fusions of a model.

    Attributes:
        others: of every agent that has none of its own.
        own: by the ids of task and model, those of single agents.
    """

    others: Fusion = NONE
    own: Mapping[tuple[str, str], Fusion] = field(default_factory=dict)

    @classmethod
    def parse(cls, given: object) -> Fusions:
        """Return what the field of a config says; None: not at all.

        Raises:
            ValueError: a number is missing or out of its range, or an agent is there twice; it says which.
        """
        if given is None:
            return cls()
        if not isinstance(given, Mapping):
            raise ValueError(f"it must be an object, not {given!r}")
        rest = dict(given)
        agents = rest.pop(AGENTS, [])
        if not isinstance(agents, list) or not all(isinstance(one, Mapping) for one in agents):
            raise ValueError(f"{AGENTS} must be a list of objects, not {agents!r}")
        own: dict[tuple[str, str], Fusion] = {}
        for one in agents:
            task_id, model_id = (str(one.get(name, "")) for name in _IDS)
            if (task_id, model_id) in own:
                raise ValueError(f"{AGENTS} has the agent {task_id!r}, {model_id!r} twice")
            own[task_id, model_id] = _fusion({name: value for name, value in one.items() if name not in _IDS})
        return cls(_fusion(rest), own)

    def of(self, agent: Agent) -> Fusion:
        """Return the fusion for an agent."""
        return self.own.get((agent.task_id, agent.model_id), self.others)

    def but(self, agent: Agent, fusion: Fusion) -> Fusions:
        """Return these with another fusion of one agent."""
        return Fusions(self.others, {**self.own, (agent.task_id, agent.model_id): fusion})

    def dumped(self) -> dict[str, Any]:
        """Return the field of a config, as :meth:`parse` takes it."""
        agents = [
            dict(zip(_IDS, ids, strict=True)) | asdict(fusion) for ids, fusion in sorted(self.own.items())
        ]
        return asdict(self.others) | ({AGENTS: agents} if agents else {})


def write(fusion: Fusion, folder: Path) -> None:
    """Write the fusion of an agent's own changes into their folder."""
    (folder / FILE).write_text(json.dumps(asdict(fusion)), encoding="utf-8")


def read(folder: Path) -> Fusion | None:
    """Return the fusion of the changes in a folder; None if they have none.

    Raises:
        ModelError: it cannot be read, or a number is missing or out of its range.
    """
    try:
        given = json.loads((folder / FILE).read_bytes())
        if not isinstance(given, dict):
            raise ValueError(f"it must be an object, not {given!r}")
        return _fusion(given)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ModelError(f"{FILE}: {one_line(error)}") from None


def fuse(
    probabilities: FloatArray, first: FloatArray, fusion: Fusion, vectors: csr_array | None = None
) -> FloatArray:
    """Fuse a reranker's probabilities with a first stage's standardized scores.

    Args:
        probabilities: a reranker's, [n].
        first: standardized scores, [n].
        fusion: how.
        vectors: of the passages; None if the fusion has no neighbors.

    Returns:
        Vector [n] in [0, 1]; see :func:`evenmesh_core.fusion.log_odds_fusion`.
    """
    return log_odds_fusion(
        probabilities,
        first,
        fusion.weight,
        neighbors=fusion.neighbors,
        vectors=vectors,
        slope=fusion.slope,
        intercept=fusion.intercept,
    )


def _fusion(given: Mapping[str, Any]) -> Fusion:
    try:
        found = Fusion(**{name: float(value) for name, value in given.items()})
    except (TypeError, ValueError):
        raise ValueError(
            f"it must have weight, slope and intercept, and may have neighbors, not {dict(given)}"
        ) from None
    weights = 0 <= found.weight <= 10 and 0 <= found.neighbors <= 10
    if not (weights and 0 < found.slope <= 10 and -100 <= found.intercept <= 100):
        raise ValueError(
            "it must have a weight and neighbors in [0, 10], a slope in (0, 10] and an intercept in "
            f"[-100, 100], not {dict(given)}"
        )
    if found.neighbors and not found.weight:
        raise ValueError(f"it has neighbors without a weight, so nothing would be fused: {dict(given)}")
    return found
