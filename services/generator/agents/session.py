"""Training one agent: everything that can be wrong is found, and told at once, before the first step."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from services.generator.agents.entries import UTILITIES, Entry, utility_of, write_entries
from services.generator.agents.lessons import Lessons, Library
from services.generator.agents.prompts import Reading
from services.generator.agents.tasks import HELD_OUT, SHARED, TRAIN, Task, chosen, locate, read
from services.generator.domain import Augmentation
from services.generator.pointer import artifact, base
from services.generator.pointer.artifact import ArtifactError
from services.generator.pointer.base import BaseModelError
from services.generator.pointer.modeling import PointerForConditionalGeneration
from services.generator.pointer.tokenization import PairTokenizer
from services.generator.runtime.loading import model_type
from services.generator.training import loop
from services.generator.training.loop import Finished, Trainer
from services.generator.training.recipe import RecipeError, Stage
from services.generator.training.session import BUNDLED, thaw

if TYPE_CHECKING:
    from services.generator.agents.pointer_learner import PointerAgent
    from services.generator.agents.seq2seq_learner import Seq2SeqAgent

AUGMENTATIONS: Final = {"in-prompt": Augmentation.IN_PROMPT, "fid": Augmentation.FUSION_IN_DECODER}
"""Ways of reading, by their names in files."""

ENTRIES: Final = "agent.toml"
"""Name of the file beside the model that says what it serves as."""

_BETA2: Final = 0.999
_LONGEST_PAIR: Final = 256  # of a pointer model, as it is served


@dataclass(frozen=True)
class Options:
    """One agent, or several that share a model. Defaults are the paper's (section 5.1, appendix B).

    ``tasks``: names of agents or kinds in the data. ``k`` passages are shown, those that fit. ``epochs`` over
    all inputs, or ``steps``. ``limit``: learn from so many inputs of each task, drawn from the seed.
    ``warm_up``: share of the steps. ``frozen_layers``: lowest layers of a pointer model's encoder that stay.
    ``name``: what the generator will call the model; None: the output folder's name.
    """

    tasks: tuple[str, ...]
    model: str
    augmentation: str
    output: Path
    root: Path
    data: str = SHARED
    passages: Path | None = None
    collection: str | None = None
    name: str | None = None
    model_id: str | None = None
    template: str = ""
    utility: str | None = None
    k: int = 10
    epochs: float = 10.0
    steps: int | None = None
    limit: int | None = None
    batch_size: int = 64
    micro_batch: int = 8
    learning_rate: float = 5e-5
    weight_decay: float = 1e-2
    warm_up: float = 0.05
    frozen_layers: int | None = None
    max_length: int = 512
    max_target: int = 32
    held_out: int = 200
    seed: int = 13
    bf16: bool = True
    resume: bool = False
    progress_bar: bool = True


@dataclass(frozen=True)
class Run:
    """A run ready for its first step.

    ``examples`` it learns from; inputs left out: ``nothing_found``, with which no passage shares a word, and
    ``too_long`` for the model; ``held_out`` examples are measured, of split ``split``.
    """

    trainer: Trainer
    stage: Stage
    examples: int
    nothing_found: int
    too_long: int
    held_out: int
    split: str | None
    entries: Sequence[Entry]
    output: Path

    def run(self) -> Finished:
        """Trains; at the end the entries are written beside the model."""
        done = self.trainer.run()
        if done.complete and self.trainer.speaks:
            write_entries(self.output / ENTRIES, self.entries)
        return done


def prepare(options: Options) -> Run:
    """The run that ``options`` describe.

    Raises:
        RecipeError: something cannot be used; the message has a line for each thing that is wrong.
    """
    problems = _Problems(_impossible(options))
    with problems.gathered():
        if not options.resume:
            loop.prepare_output(options.output, resume=False)
    files = data = None
    with problems.gathered():
        files = locate(options.data, options.passages, options.root)
    if files is not None:
        with problems.gathered():
            data = read(*files)
    wanted: list[Task] = []
    if data is not None:
        for name in options.tasks:
            with problems.gathered():
                chosen(data.tasks, [name])
        if not problems:
            wanted = chosen(data.tasks, options.tasks)
    learned = [task for task in wanted if task.split == TRAIN]
    if wanted and not learned:
        problems.add(f"--data {options.data}: {', '.join(options.tasks)} has no input of split train")
    learner: PointerAgent | Seq2SeqAgent | None = None
    stage = _stage(options, 1)
    if not problems or _loadable(options):
        with problems.gathered():
            learner = _learner(options, stage)
    problems.end()
    if data is None or learner is None:  # told above; said again for the type checker
        raise RecipeError("nothing to train")
    library = Library(data.passages)
    found = library.look_up(_limited(learned, options), options.k)
    if not found.examples:
        raise RecipeError("no input shares a word with any passage: is --passages the right file?")
    examples = learner.fitting(found.examples)
    if not examples:
        raise RecipeError(f"--model {options.model} can read no input: all are too long")
    split = next((name for name in HELD_OUT if any(task.split == name for task in wanted)), None)
    held_out = _drawn([task for task in wanted if task.split == split], options)
    kept = learner.fitting(library.look_up(held_out, options.k).examples)
    steps = options.steps or max(1, math.ceil(len(examples) * options.epochs / options.batch_size))
    stage = _stage(options, steps)
    identity = {
        "tasks": list(options.tasks),
        "data": str(options.data),
        "start": options.model,
        "examples": len(examples),
        "k": options.k,
        "frozen": options.frozen_layers,
    }
    trainer = Trainer(
        learner,
        Lessons(examples, options.seed),
        stage,
        options.output,
        seed=options.seed,
        samples={"five": kept} if kept else {},
        identity=identity,
        start=Path(options.model) if Path(options.model).is_dir() else None,
        resume=options.resume,
        progress_bar=options.progress_bar,
    )
    return Run(
        trainer,
        stage,
        len(examples),
        found.nothing_found,
        len(found.examples) - len(examples),
        len(kept),
        split if kept else None,
        _entries(options, wanted, data.tasks_file),
        options.output,
    )


class _Problems:
    """What is wrong, gathered so that it can be told at once."""

    def __init__(self, found: Sequence[str]) -> None:
        self._found = list(found)

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, problem: str) -> None:
        self._found.append(problem)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        try:
            yield
        except RecipeError as error:
            self._found.append(str(error))

    def end(self) -> None:
        if self._found:
            raise RecipeError("\n".join(self._found))


def _impossible(options: Options) -> list[str]:
    """Options out of their range."""
    rules: list[tuple[bool, str]] = [
        (bool(options.tasks), "--task is missing: name a task of the data, or several"),
        (
            options.augmentation in AUGMENTATIONS,
            f"--augmentation is {options.augmentation!r}; allowed: {', '.join(AUGMENTATIONS)}",
        ),
        (
            options.utility is None or options.utility in UTILITIES,
            f"--utility is {options.utility!r}; allowed: {', '.join(UTILITIES)}",
        ),
        (1 <= options.k <= 100, f"--k is {options.k}; allowed: from 1 to 100"),
        (0 < options.epochs < math.inf, f"--epochs is {options.epochs:g}; allowed: more than 0"),
        (options.steps is None or options.steps >= 1, f"--steps is {options.steps}; allowed: from 1"),
        (options.limit is None or options.limit >= 1, f"--limit is {options.limit}; allowed: from 1"),
        (options.batch_size >= 1, f"--batch-size is {options.batch_size}; allowed: from 1"),
        (options.micro_batch >= 1, f"--micro-batch is {options.micro_batch}; allowed: from 1"),
        (
            0 < options.learning_rate < 1,
            f"--learning-rate is {options.learning_rate:g}; allowed: between 0 and 1",
        ),
        (0 <= options.weight_decay < 1, f"--weight-decay is {options.weight_decay:g}; allowed: from 0 to 1"),
        (0 <= options.warm_up < 1, f"--warm-up is {options.warm_up:g}; allowed: from 0 to 1"),
        (options.max_length >= 16, f"--max-length is {options.max_length}; allowed: from 16"),
        (options.max_target >= 4, f"--max-target is {options.max_target}; allowed: from 4"),
        (options.held_out >= 0, f"--held-out is {options.held_out}; allowed: from 0"),
        (
            not (_is_pointer(options.model) and options.template),
            f"--template {options.template}: the pointer model reads passages in a form of its own",
        ),
        (
            options.frozen_layers is None or _is_pointer(options.model),
            "--frozen-layers is for pointer models alone",
        ),
    ]
    return [told for fine, told in rules if not fine]


def _stage(options: Options, steps: int) -> Stage:
    """The trainer's settings; values that :func:`_impossible` refuses are replaced, to go on looking."""
    per_epoch = max(1, math.ceil(steps / max(1.0, options.epochs)))  # 1 for NaN
    return Stage(
        steps=steps,
        batch_size=max(1, options.batch_size),
        micro_batch=max(1, min(options.micro_batch, options.batch_size)),
        learning_rate=options.learning_rate if 0 < options.learning_rate < 1 else 5e-5,
        beta2=_BETA2,
        weight_decay=options.weight_decay if 0 <= options.weight_decay < 1 else 0.0,
        warm_up=math.ceil(max(0.0, min(options.warm_up, 1.0)) * steps),
        bf16=options.bf16,
        max_length=max(16, options.max_length),
        max_target=max(4, options.max_target),
        evaluate_every=per_epoch,
        evaluate_examples=max(1, options.held_out),
        checkpoint_every=max(1, min(per_epoch, 50)),
    )


def _is_pointer(model: str) -> bool:
    folder = Path(model)
    return model == BUNDLED or (
        (folder / "config.json").is_file() and model_type(folder) == "ragmesh-pointer"
    )


def _loadable(options: Options) -> bool:
    """Whether looking at the model is worth it though something else is wrong: it is on this machine."""
    return options.augmentation in AUGMENTATIONS and (
        _is_pointer(options.model) or Path(options.model).is_dir()
    )


def _learner(options: Options, stage: Stage) -> "PointerAgent | Seq2SeqAgent":
    reading = Reading(AUGMENTATIONS[options.augmentation], options.template)
    if not _is_pointer(options.model):
        # transformers' models take long to import, and the pointer model needs none of them
        from services.generator.agents.seq2seq_learner import Seq2SeqAgent

        return Seq2SeqAgent.load(options.model, stage, reading)
    from services.generator.agents.pointer_learner import PointerAgent

    try:
        model = artifact.load(None if options.model == BUNDLED else Path(options.model))
        tokenizer = PairTokenizer(base.folder())
    except (ArtifactError, BaseModelError) as error:
        raise RecipeError(f"--model {options.model}: {error}") from None
    if options.frozen_layers is not None:
        _freeze(model, options.frozen_layers)
    return PointerAgent(
        model,
        tokenizer,
        stage.model_copy(update={"max_length": min(stage.max_length, _LONGEST_PAIR)}),
        reading,
    )


def _freeze(model: PointerForConditionalGeneration, layers: int) -> None:
    """Leave the lowest ``layers`` of the encoder as they are, and train all above.

    Raises:
        RecipeError: the encoder has fewer.
    """
    if not 0 <= layers <= len(model.encoder.layers):
        raise RecipeError(f"--frozen-layers is {layers}; allowed: from 0 to {len(model.encoder.layers)}")
    if layers < model.config.frozen_layers:
        thaw(model, layers)
    for layer in model.encoder.layers[:layers]:
        layer.requires_grad_(False)


def _limited(tasks: Sequence[Task], options: Options) -> list[Task]:
    if options.limit is None:
        return list(tasks)
    return [one for mine in _by_agent(tasks) for one in _sample(mine, options.limit, options.seed)]


def _drawn(tasks: Sequence[Task], options: Options) -> list[Task]:
    return _sample(tasks, options.held_out, options.seed)


def _sample(tasks: Sequence[Task], count: int, seed: int) -> list[Task]:
    order = np.random.default_rng([seed, 1]).permutation(len(tasks))[:count]
    return [tasks[int(place)] for place in sorted(order)]


def _by_agent(tasks: Sequence[Task]) -> list[list[Task]]:
    found: dict[str, list[Task]] = {}
    for task in tasks:
        found.setdefault(task.agent, []).append(task)
    return list(found.values())


def _entries(options: Options, wanted: Sequence[Task], tasks_file: Path) -> list[Entry]:
    name = options.name or options.output.resolve().name
    return [
        Entry(
            task_id=mine[0].agent,
            model_id=options.model_id or name,
            model=name,
            augmentation=options.augmentation,
            template=options.template,
            utility=options.utility or utility_of(mine[0].kind),
            dataset=_dataset(mine),
            passages=options.k,
            tasks_file=tasks_file,
            collection=options.collection or SHARED,
        )
        for mine in _by_agent(wanted)
    ]


def _dataset(tasks: Sequence[Task]) -> str:
    sources = {task.source for task in tasks}
    return sources.pop() if len(sources) == 1 else tasks[0].agent
