"""The stored records: what every candidate is worth to an agent, and which one each system shows first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from benchmarks import csv_rows, parquet_rows
from evenmesh_reranker.models.fusions import Fusions
from evenmesh_training.ium.plan import AgentTable

OUT: Final = Path(__file__).resolve().parents[2] / "docs" / "studies" / "agents"
START: Final = "start"
LEARNED: Final = "learned"
WITHOUT_IDS: Final = "without-ids"
BLENDED: Final = "blended"
LISTWISE: Final = "listwise"
ASKED: Final = "asked"
FUSED: Final = "fused"
SHARED: Final = "shared"
IN_HYBRID: Final = ("hybrid", "start", "asked", "fused")
"""Systems with the candidates of an ask without options: the first stage, and the model in three ways."""
WORTH: Final = OUT / "worth.parquet"
FUSIONS: Final = OUT / "fusions.csv"
_AGENT: Final = ("agent", pa.dictionary(pa.int8(), pa.string()))
_WORTH: Final = pa.schema([_AGENT, ("query", pa.string()), ("utilities", pa.list_(pa.float32()))])
_FIRST: Final = pa.schema([_AGENT, ("query", pa.string()), ("first", pa.int8()), ("tau", pa.float32())])


def path(system: str, seed: int | None = None, depth: int | None = None, folder: Path = OUT) -> Path:
    """Return the file of a system, of its seed if it learned, and of fewer candidates if it ranked fewer."""
    of_seed = "" if seed is None else f"-{seed}"
    return folder / f"{system}{of_seed}{'' if depth is None else f'-of-{depth}'}.parquet"


def write_worth(rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a row for each agent and query: the utility of each candidate alone, in BM25's order."""
    parquet_rows.write(WORTH, rows, _WORTH)


def write_in_hybrid(rows: Iterable[Mapping[str, Any]], seed: int) -> None:
    """Write a row for each agent and query: the utility of what each of :data:`IN_HYBRID` shows first."""
    columns = [(name, pa.float32()) for name in IN_HYBRID]
    parquet_rows.write(in_hybrid(seed), rows, pa.schema([_AGENT, ("query", pa.string()), *columns]))


def in_hybrid(seed: int) -> Path:
    """Return the file of a seed with the candidates of an ask without options."""
    return OUT / f"in-hybrid-{seed}.parquet"


def write_fusions(first_stage: str, seed: int, fusions: Fusions, agents: Sequence[AgentTable]) -> None:
    """Write a row for each agent into :data:`FUSIONS`: the weights that its feedback chose."""
    rows: list[dict[str, Any]] = [
        one for one in csv_rows.read(FUSIONS) if (one["first_stage"], one["seed"]) != (first_stage, str(seed))
    ]
    for agent in agents:
        chosen = fusions.of(agent.agent)
        rows.append(
            {
                "first_stage": first_stage,
                "seed": seed,
                "agent": agent.name,
                "weight": chosen.weight,
                "neighbors": chosen.neighbors,
            }
        )
    csv_rows.write(FUSIONS, sorted(rows, key=lambda one: (one["first_stage"], int(one["seed"]))))


def write(rows: Iterable[Mapping[str, Any]], to: Path) -> None:
    """Write a row for each agent and query; the file appears complete.

    Args:
        rows: ``agent`` and ``query``; ``first``, BM25's place, from 0, of what is shown first; and ``tau``,
            Kendall's τ of the ranking to that of the model at the start, or of its own to BM25's.
        to: the file.
    """
    parquet_rows.write(to, rows, _FIRST)
