"""Prepare the training of an agent: find and report every problem before the first step."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from evenmesh_generator.domain import Augmentation
from evenmesh_generator.pointer.modeling import PointerForConditionalGeneration
from evenmesh_generator.pointer.tokenization import LONGEST_PAIR
from evenmesh_lab.files.trained_texts import TrainingTexts
from evenmesh_training.agents.entries import UTILITIES, AgentEntry, utility_of, write_entries
from evenmesh_training.agents.options import AgentOptions
from evenmesh_training.agents.prompts import InputFormat
from evenmesh_training.agents.tasks import HELD_OUT, SHARED, TRAIN, Task, chosen, locate, read
from evenmesh_training.agents.training_examples import PassageIndex, ShuffledExamples
from evenmesh_training.rankrag import loop, record
from evenmesh_training.rankrag.loop import Trainer, TrainingResult
from evenmesh_training.rankrag.recipe import RecipeError, Stage
from evenmesh_training.rankrag.starting_models import is_pointer, load_pointer, unfreeze

if TYPE_CHECKING:
    from evenmesh_training.agents.pointer_learner import PointerAgent
    from evenmesh_training.agents.seq2seq_learner import Seq2SeqAgent

AUGMENTATIONS: Final = {"in-prompt": Augmentation.IN_PROMPT, "fid": Augmentation.FUSION_IN_DECODER}
"""Ways of reading, by their names in files."""

ENTRIES: Final = "agent.toml"
"""Name of the file beside the model that says what it serves as."""

_BETA2: Final = 0.999


@dataclass(frozen=True, kw_only=True)
class Options(AgentOptions):
    """One agent, or several that share a model.

    ``tasks``: names of agents or kinds in the data. ``k`` passages are shown, those that fit. ``epochs`` over
    all inputs, or ``steps``. ``warm_up``: share of the steps. ``name``: what the generator will call the
    model; None: the output folder's name.
    """

    tasks: tuple[str, ...]
    output: Path
    root: Path
    max_length: int = 512
    max_target: int = 32
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
    entries: Sequence[AgentEntry]
    output: Path

    def run(self) -> TrainingResult:
        """Train, and write the entries next to the model at the end."""
        done = self.trainer.run()
        if done.complete and self.trainer.is_main:
            write_entries(self.output / ENTRIES, self.entries)
        return done


def prepare(options: Options) -> Run:
    """Return the run that ``options`` describe.

    Raises:
        RecipeError: something cannot be used; the message has a line for each thing that is wrong.
    """
    problems = _Problems(_impossible(options))
    with problems.gathered():
        if not options.resume:
            loop.prepare_output(options.output)
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
    if data is None or learner is None:  # reported above; repeated for the type checker
        raise RecipeError("nothing to train")
    library = PassageIndex(data.passages)
    found = library.retrieve(_limited(learned, options), options.k)
    if not found.examples:
        raise RecipeError("no input shares a word with any passage: is --passages the right file?")
    examples = learner.fitting(found.examples)
    if not examples:
        raise RecipeError(f"--model {options.model} can read no input: all are too long")
    split = next((name for name in HELD_OUT if any(task.split == name for task in wanted)), None)
    held_out = _sample([task for task in wanted if task.split == split], options.held_out, options.seed)
    kept = learner.fitting(library.retrieve(held_out, options.k).examples)
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
        ShuffledExamples(examples, options.seed),
        stage,
        options.output,
        seed=options.seed,
        samples={"five": kept} if kept else {},
        identity=identity,
        start=Path(options.model) if Path(options.model).is_dir() else None,
        resume=options.resume,
        progress_bar=options.progress_bar,
    )
    if trainer.is_main:
        learned_from = TrainingTexts.of(
            f"agent {', '.join(options.tasks)}",
            (one.question for one in examples),
            (shown.passage.text for one in examples for shown in one.shown),
        )
        record.keep_texts(options.output, learned_from, start=options.model)
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
    """Collects problems to report them together."""

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
    """Return the problems of options out of their range."""
    pointer = is_pointer(options.model)
    ranges: list[tuple[str, bool, str]] = [
        ("augmentation", options.augmentation in AUGMENTATIONS, ", ".join(AUGMENTATIONS)),
        ("utility", options.utility is None or options.utility in UTILITIES, ", ".join(UTILITIES)),
        ("k", 1 <= options.k <= 100, "from 1 to 100"),
        ("epochs", 0 < options.epochs < math.inf, "more than 0"),
        ("steps", options.steps is None or options.steps >= 1, "from 1"),
        ("limit", options.limit is None or options.limit >= 1, "from 1"),
        ("batch_size", options.batch_size >= 1, "from 1"),
        ("micro_batch", options.micro_batch >= 1, "from 1"),
        ("learning_rate", 0 < options.learning_rate < 1, "between 0 and 1"),
        ("weight_decay", 0 <= options.weight_decay < 1, "from 0 to 1"),
        ("warm_up", 0 <= options.warm_up < 1, "from 0 to 1"),
        ("max_length", options.max_length >= 16, "from 16"),
        ("max_target", options.max_target >= 4, "from 4"),
        ("held_out", options.held_out >= 0, "from 0"),
    ]
    found = [] if options.tasks else ["--task is missing: name a task of the data, or several"]
    for name, fine, allowed in ranges:
        if not fine:
            value = getattr(options, name)
            shown = f"{value:g}" if isinstance(value, float) else repr(value)
            found.append(f"--{name.replace('_', '-')} is {shown}; allowed: {allowed}")
    if pointer and options.template:
        found.append(f"--template {options.template}: the pointer model reads passages in a form of its own")
    if options.frozen_layers is not None and not pointer:
        found.append("--frozen-layers is for pointer models alone")
    return found


def _stage(options: Options, steps: int) -> Stage:
    """Return the trainer's settings; replace values that :func:`_impossible` refuses, to check the rest."""
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


def _loadable(options: Options) -> bool:
    """Return whether looking at the model is worth it though something else is wrong: it is on this
    machine.
    """
    return options.augmentation in AUGMENTATIONS and (
        is_pointer(options.model) or Path(options.model).is_dir()
    )


def _learner(options: Options, stage: Stage) -> "PointerAgent | Seq2SeqAgent":
    input_format = InputFormat(AUGMENTATIONS[options.augmentation], options.template)
    if not is_pointer(options.model):
        # transformers' models take long to import, and the pointer model needs none of them
        from evenmesh_training.agents.seq2seq_learner import Seq2SeqAgent

        return Seq2SeqAgent.load(options.model, stage, input_format)
    from evenmesh_training.agents.pointer_learner import PointerAgent

    try:
        model, tokenizer = load_pointer(options.model)
    except RecipeError as error:
        raise RecipeError(f"--model {options.model}: {error}") from None
    if options.frozen_layers is not None:
        _freeze(model, options.frozen_layers)
    return PointerAgent(
        model,
        tokenizer,
        stage.model_copy(update={"max_length": min(stage.max_length, LONGEST_PAIR)}),
        input_format,
    )


def _freeze(model: PointerForConditionalGeneration, layers: int) -> None:
    """Leave the lowest ``layers`` of the encoder as they are, and train all above.

    Raises:
        RecipeError: the encoder has fewer.
    """
    if not 0 <= layers <= len(model.encoder.layers):
        raise RecipeError(f"--frozen-layers is {layers}; allowed: from 0 to {len(model.encoder.layers)}")
    if layers < model.config.frozen_layers:
        unfreeze(model, layers)
    for layer in model.encoder.layers[:layers]:
        layer.requires_grad_(False)


def _limited(tasks: Sequence[Task], options: Options) -> list[Task]:
    if options.limit is None:
        return list(tasks)
    return [one for mine in _by_agent(tasks) for one in _sample(mine, options.limit, options.seed)]


def _sample(tasks: Sequence[Task], count: int, seed: int) -> list[Task]:
    order = np.random.default_rng([seed, 1]).permutation(len(tasks))[:count]
    return [tasks[int(place)] for place in sorted(order)]


def _by_agent(tasks: Sequence[Task]) -> list[list[Task]]:
    found: dict[str, list[Task]] = {}
    for task in tasks:
        found.setdefault(task.agent, []).append(task)
    return list(found.values())


def _entries(options: Options, wanted: Sequence[Task], tasks_file: Path) -> list[AgentEntry]:
    name = options.name or options.output.resolve().name
    return [
        AgentEntry(
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
