"""Agents learn from what serves them: the same prompts, and answers that are the served model's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from services.generator.agents import tasks
from services.generator.agents.lessons import Library
from services.generator.agents.pointer_learner import PointerAgent
from services.generator.agents.prompts import Reading
from services.generator.agents.seq2seq_learner import Seq2SeqAgent
from services.generator.domain import Augmentation, Decoding, GenerationRequest, Passage
from services.generator.runtime.assembly import EngineOptions, assemble, pointer_engine
from services.generator.runtime.engine import LanguageEngine
from services.generator.training.examples import Example
from services.generator.training.recipe import RecipeError, Stage
from tests import tiny_models
from tests.tiny_engines import CPU, TEMPLATES, write

STAGE = Stage(
    steps=1, batch_size=4, micro_batch=2, learning_rate=1e-2, bf16=False, max_length=512, max_target=8
)
READINGS = [Reading(Augmentation.IN_PROMPT), Reading(Augmentation.FUSION_IN_DECODER)]
MODELS: dict[str, Callable[[Path], Path]] = {"t5": tiny_models.t5, "bart": tiny_models.bart}


@pytest.fixture
def examples(towns: Path) -> list[Example]:
    data = tasks.read(*tasks.locate(str(towns), None, towns.parent))
    return list(Library(data.passages).look_up(data.tasks, 3).examples)


def served(engine: LanguageEngine, example: Example, augmentation: Augmentation) -> str:
    request = GenerationRequest(
        example.question,
        tuple(Passage(one.passage.id, one.passage.title, one.passage.text) for one in example.shown),
        augmentation=augmentation,
        decoding=Decoding(max_new_tokens=8),
    )
    return write(engine, request)[0].text.strip()


@pytest.mark.parametrize("reading", READINGS, ids=["in-prompt", "fid"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_trained_model_is_served_as_it_was_measured(
    kind: str, reading: Reading, examples: list[Example], tmp_path: Path
) -> None:
    agent = Seq2SeqAgent.load(str(MODELS[kind](tmp_path / "start")), STAGE, reading)
    optimizer = torch.optim.AdamW(agent.parameter_groups(STAGE), lr=1e-3)
    losses = []
    for _ in range(4):
        loss = agent.module(agent.collate(examples[:6]))["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    judged = agent.judge(examples[:4])
    assert agent.module.training
    agent.save(tmp_path / "model")
    engine = assemble("agent", EngineOptions(path=str(tmp_path / "model"), dtype="float32"), TEMPLATES)
    try:
        answers = [served(engine, example, reading.augmentation) for example in examples[:4]]
    finally:
        engine.close()
    assert answers == [one.text for one in judged]


@pytest.mark.parametrize("reading", READINGS, ids=["in-prompt", "fid"])
def test_a_pointer_agent_is_served_as_it_was_measured(reading: Reading, examples: list[Example]) -> None:
    made = tiny_models.pointer()
    agent = PointerAgent(made.model, made.tokenizer, STAGE, reading)
    parts = agent.module(agent.collate(examples[:4]))
    assert parts["verdict"].item() == parts["choice"].item() == 0
    assert parts["loss"].item() == pytest.approx(parts["answer"].item())
    judged = agent.judge(examples[:4])
    engine = pointer_engine("agent", made.model, made.tokenizer, CPU, EngineOptions())
    try:
        answers = [served(engine, example, reading.augmentation).lower() for example in examples[:4]]
    finally:
        engine.close()
    assert answers == [(one.text or "").lower() for one in judged]


def test_the_formats_are_the_papers(examples: list[Example], tmp_path: Path) -> None:
    folder = str(tiny_models.t5(tmp_path))
    example = examples[0]
    together, apart = (Seq2SeqAgent.load(folder, STAGE, reading) for reading in READINGS)
    documents = [f"{one.passage.title} {one.passage.text}" for one in example.shown]
    contexts = " ".join(f"context {at}: {text}" for at, text in enumerate(documents, start=1))
    expected = together._tokenizer(f"{example.question} {contexts}").input_ids
    batch = together.collate([example])
    assert batch.rows == (1,)
    assert batch.ids[0].tolist() == expected
    one_each = apart.collate([example, examples[1]])
    assert one_each.rows == (3, 3)
    assert len(one_each.ids) == 3 + 3
    states, mask = apart._objective.read(one_each)
    assert mask.sum(1).tolist() == [sum(one_each.lengths[:3]), sum(one_each.lengths[3:])]
    assert states.shape[:2] == mask.shape


def test_the_loss_of_a_batch_is_the_mean_of_its_examples(examples: list[Example], tmp_path: Path) -> None:
    agent = Seq2SeqAgent.load(str(tiny_models.t5(tmp_path)), STAGE, READINGS[1])
    agent.module.eval()
    alone = [agent.module(agent.collate([one]))["loss"].item() for one in examples[:3]]
    together = agent.module(agent.collate(examples[:3]))["loss"].item()
    assert together == pytest.approx(sum(alone) / 3, rel=1e-5)


@pytest.mark.parametrize(
    ("build", "template", "message"),
    [
        (tiny_models.llama, "", "is decoder-only"),
        (tiny_models.t5, "nope", "--template nope"),
        (tiny_models.t5, "fusion-in-decoder", "--template fusion-in-decoder"),
    ],
)
def test_what_cannot_be_an_agent(
    build: Callable[[Path], Path], template: str, message: str, tmp_path: Path
) -> None:
    reading = Reading(Augmentation.IN_PROMPT, template)
    with pytest.raises(RecipeError, match=message):
        Seq2SeqAgent.load(str(build(tmp_path)), STAGE, reading)


def test_inputs_that_the_model_cannot_read_are_left_out(examples: list[Example]) -> None:
    made = tiny_models.pointer()
    agent = PointerAgent(made.model, made.tokenizer, STAGE, READINGS[1])
    fields: dict[str, Any] = {name: getattr(examples[0], name) for name in examples[0].__slots__}
    long = Example(**(fields | {"id": "long", "question": "word " * 65}))
    assert agent.fitting([examples[0], long]) == [examples[0]]
    with pytest.raises(RecipeError, match="input long of day is longer"):
        agent.check([long])
