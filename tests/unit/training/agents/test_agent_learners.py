"""Agents learn from what serves them: the same prompts, and answers that are the served model's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from evenmesh_generator.domain import Augmentation, Decoding, GenerationRequest, Passage
from evenmesh_generator.runtime.assembly import assemble
from evenmesh_generator.runtime.engine import LanguageEngine
from evenmesh_generator.runtime.options import EngineOptions
from evenmesh_generator.runtime.pointer_engines import pointer_engine
from evenmesh_training.agents import tasks
from evenmesh_training.agents.pointer_learner import PointerAgent
from evenmesh_training.agents.prompts import InputFormat
from evenmesh_training.agents.seq2seq_learner import Seq2SeqAgent
from evenmesh_training.agents.training_examples import PassageIndex
from evenmesh_training.rankrag.data.examples import Example
from evenmesh_training.rankrag.recipe import RecipeError, Stage
from tests.support import tiny_models
from tests.support.tiny_engines import CPU, TEMPLATES, write

STAGE = Stage(
    steps=1, batch_size=4, micro_batch=2, learning_rate=1e-2, bf16=False, max_length=512, max_target=8
)
READINGS = [InputFormat(Augmentation.IN_PROMPT), InputFormat(Augmentation.FUSION_IN_DECODER)]
MODELS: dict[str, Callable[[Path], Path]] = {"t5": tiny_models.t5, "bart": tiny_models.bart}


@pytest.fixture
def examples(towns: Path) -> list[Example]:
    data = tasks.read(*tasks.locate(str(towns), None, towns.parent))
    return list(PassageIndex(data.passages).retrieve(data.tasks, 3).examples)


def served(engine: LanguageEngine, example: Example, augmentation: Augmentation) -> str:
    request = GenerationRequest(
        example.question,
        tuple(Passage(one.passage.id, one.passage.title, one.passage.text) for one in example.shown),
        augmentation=augmentation,
        decoding=Decoding(max_new_tokens=8),
    )
    return write(engine, request)[0].text.strip()


@pytest.mark.parametrize("input_format", READINGS, ids=["in-prompt", "fid"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_trained_model_is_served_as_it_was_measured(
    kind: str, input_format: InputFormat, examples: list[Example], tmp_path: Path
) -> None:
    agent = Seq2SeqAgent.load(str(MODELS[kind](tmp_path / "start")), STAGE, input_format)
    optimizer = torch.optim.AdamW(agent.parameter_groups(STAGE), lr=1e-3)
    losses = []
    for _ in range(4):
        loss = agent.module(agent.collate(examples[:6]))["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    judged = agent.predict(examples[:4])
    assert agent.module.training
    agent.save(tmp_path / "model")
    engine = assemble("agent", EngineOptions(path=str(tmp_path / "model"), dtype="float32"), TEMPLATES)
    try:
        answers = [served(engine, example, input_format.augmentation) for example in examples[:4]]
    finally:
        engine.close()
    assert answers == [one.text for one in judged]


@pytest.mark.parametrize("input_format", READINGS, ids=["in-prompt", "fid"])
def test_a_pointer_agent_is_served_as_it_was_measured(
    input_format: InputFormat, examples: list[Example]
) -> None:
    made = tiny_models.pointer()
    agent = PointerAgent(made.model, made.tokenizer, STAGE, input_format)
    parts = agent.module(agent.collate(examples[:4]))
    assert parts["verdict"].item() == parts["choice"].item() == 0
    assert parts["loss"].item() == pytest.approx(parts["answer"].item())
    judged = agent.predict(examples[:4])
    engine = pointer_engine("agent", made.model, made.tokenizer, CPU, EngineOptions())
    try:
        answers = [served(engine, example, input_format.augmentation).lower() for example in examples[:4]]
    finally:
        engine.close()
    assert answers == [(one.text or "").lower() for one in judged]


def test_the_formats_are_the_papers(examples: list[Example], tmp_path: Path) -> None:
    folder = str(tiny_models.t5(tmp_path))
    example = examples[0]
    together, apart = (Seq2SeqAgent.load(folder, STAGE, input_format) for input_format in READINGS)
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
    input_format = InputFormat(Augmentation.IN_PROMPT, template)
    with pytest.raises(RecipeError, match=message):
        Seq2SeqAgent.load(str(build(tmp_path)), STAGE, input_format)


def test_inputs_that_the_model_cannot_read_are_left_out(examples: list[Example]) -> None:
    made = tiny_models.pointer()
    agent = PointerAgent(made.model, made.tokenizer, STAGE, READINGS[1])
    fields: dict[str, Any] = {name: getattr(examples[0], name) for name in examples[0].__slots__}
    long = Example(**(fields | {"id": "long", "question": "word " * 65}))
    assert agent.fitting([examples[0], long]) == [examples[0]]
