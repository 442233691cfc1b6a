"""How much is learned, and how: the settings of offline training, from a preset or a TOML file."""

from __future__ import annotations

import tomllib
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.reranker.training.learning import Options
from services.reranker.training.plan import PlanError


class Recipe(BaseModel):
    """Everything that decides the outcome, but for agents, seed and the model begun with.

    ``rounds`` T of feedback and training; ``depth`` of the candidates that BM25 finds; ``k`` of them, by the
    current model, that each agent judges; ``queries`` of each agent a round, drawn from the seed (0: all);
    ``evaluation`` of each agent that a round is measured on (0: all), of the split ``evaluation_split``;
    ``beams`` of the agents' answers. The others are those of
    :class:`services.reranker.training.learning.Options`; ``bf16`` only where it is fast. ``frozen_layers``
    lowest layers, and with ``frozen_words`` all embeddings but those of the agents' tokens, stay as they are.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(min_length=1)]
    about: str = ""
    rounds: Annotated[int, Field(ge=1, le=100)] = 3
    depth: Annotated[int, Field(ge=1, le=1000)] = 100
    k: Annotated[int, Field(ge=1, le=256)] = 32
    queries: Annotated[int, Field(ge=0)] = 0
    evaluation: Annotated[int, Field(ge=0)] = 0
    evaluation_split: Literal["dev", "test"] = "dev"
    beams: Annotated[int, Field(ge=1, le=16)] = 1
    epochs: Annotated[int, Field(ge=1)] = 2
    batch_size: Annotated[int, Field(ge=1)] = 512
    micro_batch: Annotated[int, Field(ge=1)] = 32
    learning_rate: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    warm_up: Annotated[float, Field(ge=0, le=1)] = 0.05
    max_length: Annotated[int, Field(ge=16, le=4096)] = 256
    unknown_share: Annotated[float, Field(ge=0, le=1)] = 0.1
    bf16: bool = True
    frozen_layers: Annotated[int, Field(ge=0)] = 0
    frozen_words: bool = False

    def options(self, seed: int) -> Options:
        """How one round is learned."""
        return Options(
            epochs=self.epochs,
            batch_size=self.batch_size,
            micro_batch=self.micro_batch,
            learning_rate=self.learning_rate,
            warm_up=self.warm_up,
            max_length=self.max_length,
            unknown_share=self.unknown_share,
            seed=seed,
            bf16=self.bf16,
        )


def presets() -> dict[str, Traversable]:
    """The recipes that ship, by name."""
    folder = resources.files("services.reranker.training") / "presets"
    found = {
        file.name.removesuffix(".toml"): file for file in folder.iterdir() if file.name.endswith(".toml")
    }
    return dict(sorted(found.items()))


def load(name_or_path: str) -> Recipe:
    """The preset of that name, or the recipe in that TOML file.

    Raises:
        PlanError: there is none, or it is malformed; it names the fields.
    """
    shipped = presets()
    if name_or_path in shipped:
        text = shipped[name_or_path].read_text(encoding="utf-8")
    elif Path(name_or_path).is_file():
        text = Path(name_or_path).read_text(encoding="utf-8")
    else:
        raise PlanError(
            [f"no recipe {name_or_path!r}: give a TOML file or one of the presets {', '.join(shipped)}"]
        )
    try:
        return Recipe.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise PlanError([f"{name_or_path} is not TOML: {error}"]) from None
    except ValidationError as error:
        raise PlanError(
            [
                f"{name_or_path}: {'.'.join(map(str, one['loc'])) or 'recipe'}: {one['msg']}"
                for one in error.errors()
            ]
        ) from None
