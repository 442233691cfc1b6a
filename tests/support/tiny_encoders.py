"""Tiny cross-encoders in memory, and as versions with tokens of agents or with adapters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import torch

from evenmesh_kit.compute import converting
from evenmesh_kit.compute.conversions import Conversions
from evenmesh_kit.compute.cpu_engine import EngineError, installed_version
from evenmesh_kit.compute.model_files import ModelError
from evenmesh_kit.compute.placement import Placement
from evenmesh_kit.security.caller import DEFAULT_TENANT
from evenmesh_reranker.backends import conversion
from evenmesh_reranker.backends.adapters import LowRankAdapter
from evenmesh_reranker.backends.compiled_encoder import CompiledLoader
from evenmesh_reranker.backends.encoder import Encoder, EncoderLoader, load
from evenmesh_reranker.domain import Agent
from evenmesh_reranker.models import tokens
from evenmesh_reranker.models.manifest import Kind, Lineage
from evenmesh_reranker.models.store import ModelStore
from evenmesh_reranker.ports import Adapter, Assigned, LoadedModel


class OneForAll:
    """One model, and an adapter for each agent that has one, whoever asks."""

    def __init__(self, model: LoadedModel, adapters: Mapping[Agent, Adapter] | None = None) -> None:
        self.model = model
        self._adapters = adapters or {}

    async def model_for(self, agent: Agent) -> Assigned:
        return Assigned(self.model, self._adapters.get(agent))


def encoder(folder: Path, *, version: str, dtype: str = "float32", max_length: int | None = None) -> Encoder:
    """A cross-encoder's folder as the reranker has it in memory, on the CPU."""
    loader = EncoderLoader(Placement.choose("cpu", dtype), max_length=max_length)
    return loader.full(folder, version, provenance="by hand", created_at=datetime(2026, 1, 1, tzinfo=UTC))


def convert_here(_: str, given: Mapping[str, Any], folder: Path) -> None:
    """Convert a model for OpenVINO in this process, where ``converting.convert`` starts one that imports PyTorch."""
    try:
        plain = load(Path(given["source"]), Placement.choose("cpu", "float32"))
    except ModelError as error:
        raise EngineError(str(error)) from None
    conversion.convert(plain, folder, changeable=given["changeable"])


def convert_first(store: ModelStore, version: str, home: Path) -> None:
    """Convert a version in this process, where else the reranker of a home would start one that imports PyTorch."""
    if installed_version() is None:
        return
    kept = Conversions.of_user(home)
    loader = CompiledLoader("float32", parallel=1, conversions=kept, required=True, threads=1)
    with patch.object(converting, "convert", convert_here):
        loader.full(
            store.folder(version), version, provenance="by hand", created_at=datetime(2026, 1, 1, tzinfo=UTC)
        )


def personal(folder: Path, target: Path, agents: Sequence[Agent], *, seed: int | None = None) -> Path:
    """The model of a folder with tokens of agents, their embeddings drawn where there is a seed."""
    loaded = encoder(folder, version="")
    model: Any = loaded.encoder.model
    added = tokens.add_agents(loaded.encoder.tokenizer, model, agents)
    if seed is not None:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for token in added:
                at = cast(int, loaded.encoder.tokenizer.convert_tokens_to_ids(token))
                embeddings = model.get_input_embeddings().weight
                embeddings[at] = torch.randn(embeddings.shape[1], generator=generator)
    model.save_pretrained(target)
    loaded.encoder.tokenizer.save_pretrained(target)
    return target


def keep(
    store: ModelStore,
    folder: Path,
    provenance: str,
    agent: Agent | None = None,
    *,
    tenant: str = DEFAULT_TENANT,
) -> str:
    """A folder's model as a version of a store."""
    with store.write(Lineage(provenance, agent=agent, metrics={"utility": 0.5}, tenant=tenant)) as draft:
        for path in folder.iterdir():
            (draft.folder / path.name).write_bytes(path.read_bytes())
        draft.tokens = encoder(folder, version="").agent_tokens
    return draft.version


def low_rank(seed: int, *, rank: int = 2, version: str = "a", scale: float = 1.0) -> LowRankAdapter:
    """Drawn changes to two layers of the tiny BERT: one inside, and its classifier."""
    generator = torch.Generator().manual_seed(seed)

    def pair(inputs: int, outputs: int) -> tuple[torch.Tensor, torch.Tensor]:
        down = torch.randn(rank, inputs, generator=generator)
        return down, scale * torch.randn(outputs, rank, generator=generator)

    return LowRankAdapter(
        version,
        {"bert.encoder.layer.1.attention.self.query": pair(32, 32), "classifier": pair(32, 1)},
    )


def keep_adapter(store: ModelStore, base: str, agent: Agent, seed: int) -> str:
    """Drawn changes for an agent as a version of a store."""
    lineage = Lineage("online-ium", parent=base, agent=agent, kind=Kind.ADAPTER, base=base)
    with store.write(lineage) as draft:
        low_rank(seed).save(draft.folder)
    return draft.version
