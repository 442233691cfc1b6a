"""Settings of offline training, from a preset or a TOML file."""

from __future__ import annotations

from dataclasses import fields
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from evenmesh_training.ium.learning import Loss, Options
from evenmesh_training.ium.plan import PlanError, parse


class IumRecipe(BaseModel):
    """Everything that decides the result, except agents, seed and the model to start from.

    ``learns`` the weights of the ``model``; how its scores are fused with the first stage's for each agent
    (``fusion``, see :mod:`evenmesh_training.ium.fusing`), in one round; or ``both``, the fusion by a share
    ``held_out`` of each agent's queries that the model does not learn from. ``retriever`` finds candidates,
    the mesh's default one where it is empty; ``depth`` of them. ``rounds`` T of feedback and training; ``k``
    of the candidates that
    each agent judges: the best by the current model, or, with a ``temperature``, drawn by Plackett–Luce from
    its log-odds over the temperature; ``queries`` of each agent in a round, random by seed (0: all);
    ``evaluation`` queries of each agent to measure a round on (0: all), of the split ``evaluation_split``;
    ``beams`` of the agents' answers. The others are those of
    :class:`evenmesh_training.ium.learning.Options`; ``bf16`` applies only where it is fast. The
    ``frozen_layers`` lowest layers, and with ``frozen_words`` all embeddings except those of agent tokens,
    are not trained.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(min_length=1)]
    about: str = ""
    learns: Literal["model", "fusion", "both"] = "model"
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.2
    retriever: Annotated[str, Field(max_length=128)] = "bm25"
    rounds: Annotated[int, Field(ge=1, le=100)] = 3
    depth: Annotated[int, Field(ge=1, le=1000)] = 100
    k: Annotated[int, Field(ge=1, le=256)] = 32
    temperature: Annotated[float | None, Field(gt=0, le=100)] = None
    queries: Annotated[int, Field(ge=0)] = 0
    evaluation: Annotated[int, Field(ge=0)] = 0
    evaluation_split: Literal["dev", "test"] = "dev"
    beams: Annotated[int, Field(ge=1, le=16)] = 1
    epochs: Annotated[int, Field(ge=1)] = 2
    batch_size: Annotated[int, Field(ge=1)] = 512
    micro_batch: Annotated[int, Field(ge=1)] = 32
    learning_rate: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    agent_rate: Annotated[float | None, Field(gt=0, lt=1)] = None
    warm_up: Annotated[float, Field(ge=0, le=1)] = 0.05
    decay: Annotated[float, Field(ge=0, le=1)] = 0.0
    max_length: Annotated[int, Field(ge=16, le=4096)] = 256
    unknown_share: Annotated[float, Field(ge=0, le=1)] = 0.1
    bf16: bool = True
    loss: Loss = "pointwise"
    frozen_layers: Annotated[int, Field(ge=0)] = 0
    frozen_words: bool = False

    @model_validator(mode="after")
    def _one_round_of_fusion(self) -> Self:
        if self.learns == "fusion" and self.rounds != 1:
            raise ValueError('rounds must be 1 where learns = "fusion": the model does not change')
        return self

    @property
    def fuses(self) -> bool:
        """Whether the fusion is learned."""
        return self.learns != "model"

    def options(self, seed: int) -> Options:
        """Return the options of learning in one round."""
        shared = {field.name for field in fields(Options)} & IumRecipe.model_fields.keys()
        return Options(**self.model_dump(include=shared), seed=seed)


def presets() -> dict[str, Traversable]:
    """Return the bundled recipes by name."""
    folder = resources.files("evenmesh_training.ium") / "presets"
    files = sorted(folder.iterdir(), key=lambda file: file.name)
    return {file.name.removesuffix(".toml"): file for file in files if file.name.endswith(".toml")}


def load(name_or_path: str) -> IumRecipe:
    """Return the preset of that name, or the recipe in that TOML file.

    Raises:
        PlanError: there is none, or it is malformed; it names the fields.
    """
    shipped = presets()
    source: Traversable | Path = shipped.get(name_or_path, Path(name_or_path))
    if not source.is_file():
        raise PlanError(
            [f"no recipe {name_or_path!r}: give a TOML file or one of the presets {', '.join(shipped)}"]
        )
    return parse(IumRecipe, source.read_text(encoding="utf-8"), name_or_path)
