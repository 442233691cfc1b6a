"""The recipe of a training run: its data with their shares, and how each stage is trained."""

import tomllib
from collections.abc import Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from evenmesh_training.rankrag.data.examples import Form, Kind
from evenmesh_training.toml_faults import faults_of


class RecipeError(ValueError):
    """Raised when a recipe cannot be used; the message says what to change."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Context(_Table):
    """How passages are put into examples.

    ``passages`` shown by the retrieval-augmented kinds; ``depth`` of BM25 from which negatives come;
    ``pick`` ``top`` takes the best of them (the paper), ``sampled`` draws, rank r with weight 1/r.
    ``chunk_words``, ``relevant_above`` and ``irrelevant_below`` label documents of conversations by 4-gram
    recall, strictly (paper: 150, 0.5, 0.1). ``unanswerable``: share of the retrieval-augmented answers and of
    context-rich ones whose gold passage is taken out, to be answered with an abstention; of these a share
    ``cut_sentences`` shows the gold passage without its sentences that hold the answer, the rest shows
    BM25's passages alone.

    ``separate``: retrieval-augmented QA shows each passage of a context in an example of its own, with the
    answer whether the passage holds it or not, in place of all together: the RAFT of Yu et al. (2024),
    table 3, after Lin et al. (2024). Examples of a question draw its passages one by one.
    """

    passages: Annotated[int, Field(ge=2, le=20)] = 5
    depth: Annotated[int, Field(ge=5, le=200)] = 20
    pick: Literal["top", "sampled"] = "top"
    chunk_words: Annotated[int, Field(ge=1, le=1000)] = 150
    relevant_above: Annotated[float, Field(ge=0, le=1)] = 0.5
    irrelevant_below: Annotated[float, Field(ge=0, le=1)] = 0.1
    unanswerable: Annotated[float, Field(ge=0, le=1)] = 0.0
    cut_sentences: Annotated[float, Field(ge=0, le=1)] = 0.0
    separate: bool = False

    @model_validator(mode="after")
    def _room(self) -> Self:
        if self.depth < self.passages:
            raise ValueError("depth must be at least passages")
        if self.irrelevant_below > self.relevant_above:
            raise ValueError("irrelevant_below must not exceed relevant_above")
        if self.separate and self.unanswerable:
            raise ValueError("separate needs unanswerable = 0: each passage is shown with the answer")
        return self


class Source(_Table):
    """One row of the blend: a data set used as one kind of example, with its share before normalisation.

    ``path`` (relative to the data folder) is read by the ``qa`` and ``chat`` readers. ``instead_of`` names
    another source: this one goes in only where that one is missing, and takes its share (with others that
    stand in for it, in proportion to their ratios). ``form`` puts all of its questions in one form, which
    decides the instruction; None keeps that of each question.
    """

    name: Annotated[str, Field(min_length=1)]
    dataset: str
    kind: Kind
    ratio: Annotated[float, Field(gt=0)]
    path: str | None = None
    instead_of: str | None = None
    form: Form | None = None


class Evaluation(_Table):
    """A data set that no example may overlap: its questions, and with ``passages`` its gold passages too."""

    dataset: str
    passages: bool = False


class Stage(_Table):
    """Hyper-parameters of one stage.

    ``batch_size`` examples per optimiser step over all processes, ``micro_batch`` of them at once in one
    process; ``learning_rate`` at its top, ``head_learning_rate`` of the pointer model's decoder and head;
    ``warm_up`` steps of linear rise, ``decay`` final steps of linear fall to 0, constant in between;
    ``ema`` decay of the averaged weights that are evaluated and saved (0: none are kept);
    ``max_length`` and ``max_target`` tokens.

    ``kinds_apart``: an example teaches the pointer model what its kind asks, and no more: an answer from all
    that is shown, or a verdict on each passage. For ablations of kinds (Yu et al., 2024, table 3); else it
    teaches all that can be learnt from its passages. A text model's examples always teach their kind alone.
    """

    steps: Annotated[int, Field(ge=1)]
    batch_size: Annotated[int, Field(ge=1)] = 64
    micro_batch: Annotated[int, Field(ge=1)] = 1
    learning_rate: Annotated[float, Field(gt=0, lt=1)] = 3e-7
    head_learning_rate: Annotated[float, Field(gt=0, lt=1)] | None = None
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.98
    weight_decay: Annotated[float, Field(ge=0, lt=1)] = 0.0
    warm_up: Annotated[int, Field(ge=0)] = 0
    decay: Annotated[int, Field(ge=0)] = 0
    clip: Annotated[float, Field(gt=0)] = 1.0
    bf16: bool = True
    gradient_checkpointing: bool = False
    ema: Annotated[float, Field(ge=0, lt=1)] = 0.0
    max_length: Annotated[int, Field(ge=16)] = 4096
    max_target: Annotated[int, Field(ge=4)] = 128
    kinds_apart: bool = False
    lora: bool = False
    lora_rank: Annotated[int, Field(ge=1, le=512)] = 16
    lora_alpha: Annotated[int, Field(ge=1)] = 32
    evaluate_every: Annotated[int, Field(ge=1)] = 500
    evaluate_examples: Annotated[int, Field(ge=1)] = 200
    checkpoint_every: Annotated[int, Field(ge=1)] = 100

    def factor(self, step: int) -> float:
        """Return the factor on the learning rates at ``step``, counted from 0, in (0, 1] until the last
        step.
        """
        rise = (step + 1) / self.warm_up if step < self.warm_up else 1.0
        fall = (self.steps - step) / self.decay if step > self.steps - self.decay else 1.0
        return max(0.0, min(rise, fall))


class Recipe(_Table):
    """Everything that decides the outcome of a run, but for the model it starts from.

    ``licences``: classes of licence that may go in; sources of another class are left out and named.
    """

    name: Annotated[str, Field(min_length=1)]
    about: str = ""
    seed: Annotated[int, Field(ge=0)] = 13
    licences: tuple[Literal["attribution", "unstated", "non-commercial", "own"], ...] = (
        "attribution",
        "unstated",
        "non-commercial",
        "own",
    )
    context: Context = Context()
    source: Annotated[tuple[Source, ...], Field(min_length=1)]
    evaluation: tuple[Evaluation, ...] = ()
    stage1: Stage | None = None
    stage2: Stage | None = None

    @model_validator(mode="after")
    def _names(self) -> Self:
        names = [source.name for source in self.source]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"source names must differ; more than one is called {', '.join(twice)}")
        firsts = {source.name for source in self.source if source.instead_of is None}
        for source in self.source:
            if source.instead_of is not None and source.instead_of not in firsts:
                raise ValueError(
                    f"source {source.name!r} stands in for {source.instead_of!r}, which is no such source"
                )
        return self

    def stage(self, number: int) -> Stage:
        """Return the settings of stage 1 or 2.

        Raises:
            RecipeError: the recipe has none.
        """
        found = {1: self.stage1, 2: self.stage2}.get(number)
        if found is None:
            raise RecipeError(
                f"recipe {self.name!r} has no [stage{number}]; add that table or run another stage"
            )
        return found


def without(recipe: Recipe, kinds: Sequence[Kind]) -> Recipe:
    """Return a recipe with no source of some kinds, for ablations (Yu et al., 2024, table 3); the others
    take their share.

    Raises:
        RecipeError: nothing would be left, a kind is in no source, or a source stands in for one that goes.
    """
    for kind in kinds:
        if all(source.kind is not kind for source in recipe.source):
            raise RecipeError(f"recipe {recipe.name!r} has no source of the kind {kind.value} to leave out")
    kept = [source.model_dump() for source in recipe.source if source.kind not in kinds]
    name = f"{recipe.name} without {', '.join(kind.value for kind in kinds)}"
    try:
        return Recipe.model_validate(recipe.model_dump() | {"name": name, "source": kept})
    except ValidationError as error:
        raise RecipeError(f"{name}: {error.errors()[0]['msg']}") from None


def presets() -> dict[str, Traversable]:
    """Return the recipes that ship, by name."""
    folder = resources.files("evenmesh_training.rankrag") / "presets"
    found = {
        file.name.removesuffix(".toml"): file for file in folder.iterdir() if file.name.endswith(".toml")
    }
    return dict(sorted(found.items()))


def load(name_or_path: str) -> Recipe:
    """Return the preset of that name, or the recipe in that TOML file.

    Raises:
        RecipeError: there is none, or it is malformed; the message names the field.
    """
    shipped = presets()
    if name_or_path in shipped:
        text = shipped[name_or_path].read_text(encoding="utf-8")
    else:
        path = Path(name_or_path)
        if not path.is_file():
            raise RecipeError(
                f"no recipe {name_or_path!r}: give a TOML file or one of the presets {', '.join(shipped)}"
            )
        text = path.read_text(encoding="utf-8")
    return parse(text, origin=name_or_path)


def parse(text: str, *, origin: str) -> Recipe:
    """Return the recipe in ``text``; what it leaves out is that of the preset it names as ``like``.

    Raises:
        RecipeError: it is malformed; the message names ``origin`` and the field.
    """
    try:
        given = tomllib.loads(text)
        if (base := given.pop("like", None)) is not None:
            if base not in presets():
                raise RecipeError(f"{origin}: like: there is no preset {base!r}")
            inherited = tomllib.loads(presets()[base].read_text(encoding="utf-8"))
            given = {**inherited, **given}
        return Recipe.model_validate(given)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{origin} is not TOML: {error}") from None
    except ValidationError as error:
        raise RecipeError(f"{origin}: {'; '.join(faults_of(error, 'recipe'))}") from None
