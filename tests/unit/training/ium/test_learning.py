"""Learning from feedback: the loss, what is trained, what a seed fixes, and going on after a stop."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from evenmesh_core.errors import InvalidInput
from evenmesh_kit.compute import idle_memory
from evenmesh_reranker.domain import Agent
from evenmesh_reranker.models import tokens
from evenmesh_training.ium import learning
from evenmesh_training.ium.learning import Example, Loss, Options, learn
from tests.support import tiny_encoders, tiny_models
from tests.support.tiny_models import SENTENCES

ANN, BOB = Agent("qa", "ann"), Agent("fact", "bob")
OPTIONS = Options(
    epochs=3, batch_size=8, micro_batch=3, learning_rate=5e-3, max_length=48, checkpoint_every=2
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plain = tiny_models.cross_encoder(tmp_path_factory.mktemp("plain"))
    return tiny_encoders.personal(plain, tmp_path_factory.mktemp("personal"), [ANN, BOB], seed=3)


def _opposite(count: int = 20) -> list[Example]:
    """Ann finds useful what Bob does not."""
    texts = [SENTENCES[at % len(SENTENCES)] for at in range(count)]
    found = []
    for at, text in enumerate(texts):
        for agent in (ANN, BOB):
            useful = (at % 2 == 0) is (agent == ANN)
            found.append(Example(SENTENCES[-1], "", text, agent, float(useful)))
    return found


def _state(model: Any) -> dict[str, torch.Tensor]:
    return {name: one.detach().clone() for name, one in model.named_parameters()}


def _same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(left[name], right[name]) for name in left)


def _fresh(folder: Path) -> tuple[Any, Any]:
    encoder = tiny_encoders.encoder(folder, version="v").encoder
    return encoder.tokenizer, encoder.model


@pytest.mark.parametrize("logit", [800.0, -800.0, 0.0, 3.0])
@pytest.mark.parametrize("usefulness", [0.0, 1.0, 0.25])
def test_the_loss_is_stable_where_probabilities_are_not(logit: float, usefulness: float) -> None:
    given = torch.tensor([logit], requires_grad=True)
    loss = learning.pointwise_loss(given, torch.tensor([usefulness]))
    loss.backward()
    # -log sigmoid(x) = log(1 + e^-|x|) + max(-x, 0)
    expected = math.log1p(math.exp(-abs(logit))) + max(logit, 0.0) - logit * usefulness
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-6)
    assert given.grad is not None
    sigmoid = 1 / (1 + math.exp(-logit)) if logit > -700 else 0.0
    assert float(given.grad) == pytest.approx(sigmoid - usefulness, abs=1e-6)


def test_a_question_s_loss_by_hand() -> None:
    # softmax of ln 1, ln 2, ln 5: 1/8, 2/8, 5/8; usefulness 0, 1/2, 1/2 is half and half.
    given = torch.tensor([math.log(1), math.log(2), math.log(5)], requires_grad=True)
    loss = learning.listwise_loss(given, torch.tensor([0.0, 0.5, 0.5]))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(-(math.log(2 / 8) + math.log(5 / 8)) / 2)
    assert given.grad is not None
    assert given.grad.tolist() == pytest.approx([1 / 8, 2 / 8 - 1 / 2, 5 / 8 - 1 / 2])
    # How useful they are together, and what every logit has in common, does not count.
    same = learning.listwise_loss(given + 700.0, torch.tensor([0.0, 0.1, 0.1]))
    assert float(same.detach()) == pytest.approx(float(loss.detach()), abs=1e-4)


def test_a_batch_of_lists_has_whole_questions() -> None:
    def of(query: str, agent: Agent, *useful: float) -> list[Example]:
        return [Example(query, "", f"{query} {at}", agent, one) for at, one in enumerate(useful)]

    first, second, third = of("a", ANN, 0.0, 1.0), of("a", BOB, 0.5, 0.0, 0.0), of("b", ANN, 1.0, 0.5)
    equal, alone = of("c", ANN, 0.5, 0.5), of("d", BOB, 1.0)
    examples = [first[0], *equal, *second, first[1], *alone, *third]
    lists = Options(epochs=2, batch_size=7, loss="listwise")
    assert lists.units(examples) == [first, second, third]
    assert lists.steps(examples) == 2 * 2  # two questions of up to three passages fit into seven
    assert Options(epochs=2, batch_size=1, loss="listwise").steps(examples) == 2 * 3
    points = Options(epochs=1, batch_size=7)
    assert points.units(examples) == [[one] for one in examples]


def test_what_is_computed_at_once_does_not_change_a_loss(folder: Path) -> None:
    losses = []
    for micro_batch in (1, 7, 100):
        tokenizer, model = _fresh(folder)
        for one in model.modules():
            if isinstance(one, torch.nn.Dropout):
                one.p = 0.0
        options = Options(
            epochs=1, batch_size=20, micro_batch=micro_batch, max_length=48, loss="listwise", seed=4
        )
        losses.append(learn(tokenizer, model, _opposite(), options).losses)
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert losses[0] == pytest.approx(losses[2], abs=1e-5)


def test_two_labels_are_read_as_serving_reads_them() -> None:
    logits = torch.tensor([[0.5, 2.0], [3.0, -1.0]])
    expected = logits.softmax(1)[:, 1]
    assert torch.allclose(learning.usefulness_logits(logits).sigmoid(), expected)
    assert torch.equal(learning.usefulness_logits(torch.tensor([[800.0]])), torch.tensor([800.0]))


@pytest.mark.parametrize("loss", ["pointwise", "listwise"])
def test_agents_of_opposite_tastes_end_with_opposite_scores(folder: Path, loss: Loss) -> None:
    encoder = tiny_encoders.encoder(folder, version="v")
    learned = learn(
        encoder.encoder.tokenizer,
        encoder.encoder.model,
        [one for one in _opposite() if one.text in SENTENCES[:2]],
        Options(epochs=60, batch_size=6, learning_rate=2e-3, max_length=48, unknown_share=0, loss=loss),
    )
    assert learned.complete
    assert learned.steps == 60 * 2 == len(learned.losses)
    assert learned.losses[-1] < learned.losses[0]
    scores = {}
    for agent in (ANN, BOB):
        rows = encoder.rows(SENTENCES[-1], [SENTENCES[0], SENTENCES[1]], agent)
        first, second = encoder.probabilities(rows, [None, None])
        scores[agent] = first - second
    assert scores[ANN] > 0 > scores[BOB]


def test_rows_are_those_of_serving_and_withheld_ids_are_withheld_together(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    build = learning.pairs.rows

    def watch(*args: Any) -> Any:
        seen.append((args, build(*args)))
        return seen[-1][1]

    monkeypatch.setattr(learning.pairs, "rows", watch)
    tokenizer, model = _fresh(folder)
    learn(
        tokenizer, model, _opposite(100), Options(epochs=1, batch_size=50, max_length=20, unknown_share=0.5)
    )
    monkeypatch.undo()
    serving = tiny_encoders.encoder(folder, version="v")
    serving.encoder.max_seq_length = 20
    withheld = 0
    for (_, queries, texts, agents, _), rows in seen:
        for query, text, agent, row in zip(queries, texts, agents, rows, strict=True):
            assert row == serving.rows(query, [text], agent)[0]
            assert agent in (ANN, BOB, Agent())
            withheld += agent == Agent()
    assert 70 <= withheld <= 130  # of 200 with probability 1/2: five standard deviations are 36


def test_only_what_requires_gradients_changes(folder: Path) -> None:
    tokenizer, model = _fresh(folder)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("classifier" in name)
    before = _state(model)
    learn(tokenizer, model, _opposite(8), OPTIONS)
    changed = {name for name, one in model.named_parameters() if not torch.equal(one, before[name])}
    assert changed
    assert all("classifier" in name for name in changed)
    assert not model.training


@pytest.mark.parametrize("agent_rate", [None, 0.25])
def test_agent_tokens_have_a_rate_of_their_own(folder: Path, agent_rate: float | None) -> None:
    tokenizer, model = _fresh(folder)
    before = _state(model)
    options = Options(
        epochs=1, batch_size=40, learning_rate=1e-3, agent_rate=agent_rate, warm_up=0, max_length=48
    )
    learn(tokenizer, model, _opposite(), options)
    # The first step of Adam changes a number by the rate, up or down, if its gradient is not tiny.
    name = next(name for name, one in model.named_parameters() if one is model.get_input_embeddings().weight)
    changed = {at: (one.detach() - before[at]).abs() for at, one in model.named_parameters()}
    rows = tokenizer.convert_tokens_to_ids(["[task:qa]", "[model:bob]"])
    assert changed[name][rows].median() == pytest.approx(agent_rate or 1e-3, rel=0.01)
    changed[name][tokenizer.convert_tokens_to_ids(list(tokens.present(tokenizer)))] = 0
    assert max(float(one.max()) for one in changed.values()) == pytest.approx(1e-3, rel=0.01)


def test_a_model_wrapped_for_low_rank_changes_is_trained_as_it_is(folder: Path) -> None:
    tokenizer, model = _fresh(folder)
    before = _state(model)
    wrapped = get_peft_model(model, LoraConfig(r=2, target_modules=["query", "value"]))
    learn(tokenizer, wrapped, _opposite(8), OPTIONS)
    after = dict(wrapped.named_parameters())
    assert any("lora_B" in name and bool(one.any()) for name, one in after.items())
    bases = {
        name.replace("base_model.model.", "").replace("base_layer.", ""): one for name, one in after.items()
    }
    assert all(torch.equal(bases[name], one) for name, one in before.items())


@pytest.mark.parametrize("wrapped", [False, True])
def test_attention_is_plain_while_bfloat16_learns_and_as_before_afterwards(
    folder: Path, wrapped: bool
) -> None:
    tokenizer, model = _fresh(folder)
    trained = get_peft_model(model, LoraConfig(r=2, target_modules=["query", "value"])) if wrapped else model
    seen: set[str] = set()

    def watch(*_: float) -> None:
        seen.add(model.config._attn_implementation)

    for bf16 in (True, False):
        learn(tokenizer, trained, _opposite(4), Options(epochs=1, max_length=32, bf16=bf16), on_step=watch)
        assert seen == ({"eager"} if bf16 else {"eager", "sdpa"})
        assert model.config._attn_implementation == "sdpa"

    def fail(*_: float) -> None:
        raise KeyError

    with pytest.raises(KeyError):
        learn(tokenizer, trained, _opposite(4), Options(epochs=1, max_length=32, bf16=True), on_step=fail)
    assert model.config._attn_implementation == "sdpa"


def test_the_seed_decides(folder: Path) -> None:
    ends = []
    for seed in (1, 1, 2):
        tokenizer, model = _fresh(folder)
        learn(tokenizer, model, _opposite(), Options(**{**_fields(OPTIONS), "seed": seed}))
        ends.append(_state(model))
    assert _same(ends[0], ends[1])
    assert not _same(ends[0], ends[2])


def test_what_was_freed_is_given_back_at_each_checkpoint(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The C library keeps what steps of other sizes freed, by thread: gigabytes after a few rounds."""
    given_back: list[int] = []
    steps: list[int] = []
    monkeypatch.setattr(idle_memory, "give_back_freed", lambda: given_back.append(len(steps)))
    tokenizer, model = _fresh(folder)
    learn(tokenizer, model, _opposite(), OPTIONS, on_step=lambda *_: steps.append(1))
    assert given_back == [*range(2, 16, 2), 15]


def _fields(options: Options) -> dict[str, Any]:
    return {name: getattr(options, name) for name in Options.__dataclass_fields__}


def _after(count: int) -> Callable[[], bool]:
    left = iter(range(count))
    return lambda: next(left, None) is None


@pytest.mark.parametrize("when", [0, 3, 14])
def test_a_stopped_run_goes_on_to_the_same_bits(folder: Path, tmp_path: Path, when: int) -> None:
    tokenizer, model = _fresh(folder)
    whole = learn(tokenizer, model, _opposite(), OPTIONS)
    expected = _state(model)
    path = tmp_path / "learning.pt"
    tokenizer, model = _fresh(folder)
    part = learn(tokenizer, model, _opposite(), OPTIONS, checkpoint=path, stop=_after(when))
    assert part.steps == min(when + 1, whole.steps)
    assert part.complete == (part.steps == whole.steps)
    tokenizer, model = _fresh(folder)
    reported: list[int] = []
    rest = learn(
        tokenizer,
        model,
        _opposite(),
        OPTIONS,
        checkpoint=path,
        on_step=lambda done, *_: reported.append(done),
    )
    assert rest.losses == whole.losses
    assert reported == list(range(part.steps + 1, whole.steps + 1))
    assert _same(expected, _state(model))
    assert list(tmp_path.iterdir()) == [path]


def test_what_dies_between_checkpoints_repeats_those_steps(folder: Path, tmp_path: Path) -> None:
    class KilledError(Exception):
        pass

    def die(done: int, steps: int, loss: float) -> None:
        if done == 5:
            raise KilledError

    tokenizer, model = _fresh(folder)
    whole = learn(tokenizer, model, _opposite(), OPTIONS)
    path = tmp_path / "learning.pt"
    tokenizer, again = _fresh(folder)
    with pytest.raises(KilledError):
        learn(tokenizer, again, _opposite(), OPTIONS, checkpoint=path, on_step=die)
    tokenizer, again = _fresh(folder)
    reported: list[int] = []
    rest = learn(
        tokenizer,
        again,
        _opposite(),
        OPTIONS,
        checkpoint=path,
        on_step=lambda done, *_: reported.append(done),
    )
    assert reported[0] == 4 + 1  # the checkpoint is of step 4
    assert rest.losses == whole.losses
    assert _same(_state(model), _state(again))


def test_a_checkpoint_of_other_examples_is_not_used(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "learning.pt"
    tokenizer, model = _fresh(folder)
    learn(tokenizer, model, _opposite(), OPTIONS, checkpoint=path, stop=_after(4))
    tokenizer, model = _fresh(folder)
    plain = learn(tokenizer, model, _opposite(16), OPTIONS)
    tokenizer, again = _fresh(folder)
    assert learn(tokenizer, again, _opposite(16), OPTIONS, checkpoint=path) == plain
    assert _same(_state(model), _state(again))


@pytest.mark.parametrize("left", [0.0, 0.01, 0.5, 0.99])
def test_a_checkpoint_that_was_cut_off_is_not_used(tmp_path: Path, left: float) -> None:
    path, layer = tmp_path / "learning.pt", torch.nn.Linear(2, 1)
    parameters, optimizer = dict(layer.named_parameters()), torch.optim.Adam(layer.parameters())
    learning._save(path, "same", parameters, optimizer, [0.5])
    assert learning._resume(path, "same", parameters, optimizer) == [0.5]
    path.write_bytes(path.read_bytes()[: int(left * path.stat().st_size)])
    assert learning._resume(path, "same", parameters, optimizer) == []


def test_the_rate_rises_stays_and_falls() -> None:
    options = Options(warm_up=0.1, decay=0.2)
    assert [options.factor(step, 20) for step in range(20)] == pytest.approx(
        [1 / 2, 1, *[1] * 14, 4 / 4, 3 / 4, 2 / 4, 1 / 4]
    )
    paper = Options()
    assert [paper.factor(step, 100) for step in (0, 4, 5, 99)] == pytest.approx([1 / 5, 1, 1, 1])
    assert paper.steps(_opposite(257)[:513]) == 2 * 2


@pytest.mark.parametrize("usefulness", [math.nan, -0.1, 1.1, math.inf])
def test_usefulness_must_be_a_share(folder: Path, usefulness: float) -> None:
    tokenizer, model = _fresh(folder)
    with pytest.raises(InvalidInput, match=r"examples\[1\]\.usefulness"):
        learn(tokenizer, model, [*_opposite(8)[:1], Example("a", "", "b", ANN, usefulness)], OPTIONS)


def test_nothing_to_learn_is_said(folder: Path) -> None:
    tokenizer, model = _fresh(folder)
    with pytest.raises(InvalidInput, match="examples"):
        learn(tokenizer, model, [], OPTIONS)
    equal = [dataclasses.replace(one, usefulness=0.0) for one in _opposite(8)]
    with pytest.raises(InvalidInput, match="differ in usefulness"):
        learn(tokenizer, model, equal, dataclasses.replace(OPTIONS, loss="listwise"))
    model.requires_grad_(False)
    with pytest.raises(InvalidInput, match="model"):
        learn(tokenizer, model, _opposite(8), OPTIONS)


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"warm_up": math.nan},
        {"learning_rate": 0.0},
        {"agent_rate": 1.0},
        {"max_length": 3},
        {"seed": -1},
        {"loss": "pairwise"},
    ],
)
def test_options_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        Options(**wrong)


def test_a_loss_that_is_not_finite_ends_it(folder: Path) -> None:
    tokenizer, model = _fresh(folder)
    with torch.no_grad():
        next(model.classifier.parameters()).fill_(math.nan)
    with pytest.raises(FloatingPointError, match="step 1"):
        learn(tokenizer, model, _opposite(8), OPTIONS)
