"""A run is its recipe: resumed it goes on exactly, and its checkpoints are whole."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from services.generator.pointer import checkpoint
from services.generator.pointer.checkpoint import Progress
from services.generator.pointer.examples import ExampleSource, Passage, Question, Size
from services.generator.pointer.modeling import PointerForConditionalGeneration
from services.generator.pointer.tokenization import PairTokenizer
from services.generator.pointer.train import Recipe, Stage, Trainer, default_output

RECIPE = Recipe(
    seed=1,
    steps=7,
    batch_size=4,
    stages=(Stage(0, Size(40, 0.4)), Stage(5, Size(30, 0.2))),
    warm_up=2,
    encoder_rate=1e-3,
    decoder_rate=1e-3,
)


@pytest.fixture
def trainer(
    build: Callable[..., PointerForConditionalGeneration], tokenizer: PairTokenizer
) -> Callable[[], Trainer]:
    """Makes the same trainer again and again: ten questions over two short articles."""
    passages = [
        Passage(
            f"p{n}", "Mills" if n % 2 else "Farms", f"Mill number {n} was built in {1500 + n} by the river."
        )
        for n in range(10)
    ]
    questions = [
        Question(f"q{n}", f"When was mill number {n} built?", (str(1500 + n),), f"p{n}") for n in range(10)
    ]

    def make() -> Trainer:
        model = build(
            vocab_size=30522, eos_token_id=102, bos_token_id=101, true_token_id=2995, false_token_id=6270
        )
        source = ExampleSource(passages, questions, tokenizer, seed=RECIPE.seed, size=RECIPE.size(0))
        return Trainer(model, source, RECIPE)

    return make


def test_a_resumed_run_repeats_the_uninterrupted_one(trainer: Callable[[], Trainer], tmp_path: Path) -> None:
    whole = trainer()
    curve = [whole.step(step) for step in range(7)]
    first = trainer()
    for step in range(4):
        first.step(step)
    checkpoint.save(tmp_path, first.model, first.optimizer, Progress(4, 1.5))
    second = trainer()
    progress = checkpoint.load(tmp_path, second.model, second.optimizer)
    assert progress == Progress(4, 1.5)
    assert [second.step(step) for step in range(4, 7)] == curve[4:]
    for name, parameter in whole.model.named_parameters():
        torch.testing.assert_close(second.model.get_parameter(name), parameter, atol=0, rtol=0)
    assert curve[4]["answer"] != curve[5]["answer"]


def test_training_lowers_the_loss_on_its_own_batch(trainer: Callable[[], Trainer]) -> None:
    made = trainer()
    fixed = made.batch(0)
    made.batch = lambda _: fixed  # type: ignore[method-assign]
    losses = [made.step(step)["answer"] for step in range(6)]
    assert losses[-1] < losses[0] - 0.1


def test_batches_depend_on_the_step_alone(trainer: Callable[[], Trainer]) -> None:
    one, other = trainer(), trainer()
    there = [one.batch(step).input_ids for step in range(6)]  # ten questions, four a batch: two epochs
    back = [other.batch(step).input_ids for step in (5, 4, 3, 2, 1, 0)][::-1]
    assert all(torch.equal(a, b) for a, b in zip(there, back, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(there[:3], there[3:], strict=True))


def test_frozen_tensors_stay_and_trained_ones_move(trainer: Callable[[], Trainer]) -> None:
    made = trainer()
    before = {name: p.detach().clone() for name, p in made.model.named_parameters()}
    made.step(0)
    moved = {n for n, p in made.model.named_parameters() if not torch.equal(p, before[n])}
    assert moved
    assert moved <= {n for n, p in made.model.named_parameters() if p.requires_grad}
    assert {"head.gate.weight", "encoder.layers.1.output.dense.weight"} <= moved


def test_the_rate_rises_and_falls() -> None:
    recipe = Recipe(steps=10, warm_up=2)
    rates = [recipe.rate(step) for step in range(11)]
    assert rates == pytest.approx([1 / 2, 1, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8, 0])


def test_stages_change_the_size_at_their_step() -> None:
    recipe = Recipe(stages=(Stage(0, Size(160, 0.4)), Stage.parse("10:128:0.25")))
    assert [recipe.size(step) for step in (0, 9)] == [Size(160, 0.4)] * 2
    assert [recipe.size(step) for step in (10, 99)] == [Size(128, 0.25)] * 2


def test_no_steps_means_one_epoch(trainer: Callable[[], Trainer]) -> None:
    made = trainer()
    assert Trainer(made.model, made._source, replace(RECIPE, steps=0)).recipe.steps == 3  # ⌈10 / 4⌉


def test_a_checkpoint_replaces_the_old_one_and_leaves_nothing_else(
    trainer: Callable[[], Trainer], tmp_path: Path
) -> None:
    made = trainer()
    checkpoint.save(tmp_path, made.model, made.optimizer, Progress(1, 0.0))
    checkpoint.save(tmp_path, made.model, made.optimizer, Progress(2, 0.0))
    assert [path.name for path in tmp_path.iterdir()] == [checkpoint.NAME]
    assert checkpoint.load(tmp_path, made.model).step == 2


def test_a_checkpoint_of_another_model_is_refused(
    trainer: Callable[[], Trainer], build: Callable[..., PointerForConditionalGeneration], tmp_path: Path
) -> None:
    made = trainer()
    checkpoint.save(tmp_path, made.model, made.optimizer, Progress(1, 0.0))
    with pytest.raises(ValueError, match="other tensors"):
        checkpoint.load(tmp_path, build(frozen_layers=0))


def test_checkpoints_live_under_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAGMESH_HOME", str(tmp_path))
    assert default_output() == tmp_path / "training" / "pointer"
