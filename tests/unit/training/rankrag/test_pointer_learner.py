"""Training the pointer model: what is decoded from an example, and the losses by hand."""

import dataclasses
from pathlib import Path

import pytest
import torch

from evenmesh_generator.domain import Passage
from evenmesh_generator.pointer import artifact
from evenmesh_generator.pointer.abstention import ABSTENTION
from evenmesh_models import WEIGHTS
from evenmesh_training.rankrag.data.blend import Blend
from evenmesh_training.rankrag.data.examples import Example, Form, Kind, Shown
from evenmesh_training.rankrag.learners.pointer_learner import (
    ABSTAIN,
    ALONE,
    LISTWISE,
    POINTWISE,
    PointerLearner,
    decodings,
)
from evenmesh_training.rankrag.recipe import Recipe, RecipeError
from evenmesh_training.rankrag.starting_models import unfreeze
from tests.support import tiny_models


@pytest.fixture
def learner(recipe: Recipe) -> PointerLearner:
    reader = tiny_models.pointer()
    return PointerLearner(reader.model, reader.tokenizer, recipe.stage(2))


def shown(text: str, *, gold: bool = False, holds: bool = False, altered: bool = False) -> Shown:
    return Shown(Passage(text, "title", text), gold, gold or holds, altered)


def example(kind: Kind, *passages: Shown, form: Form = Form.SHORT) -> Example:
    answer = "red fox" if any(one.gold or one.holds for one in passages) else ABSTENTION
    return Example(kind, "s", "i", "who runs?", (), passages, answer, ("red fox",), form)


GOLD = shown("a red fox runs", gold=True)
TWIN = shown("the red fox", holds=True)
OTHER = shown("a blue bird sings in the tree")
CUT = shown("it runs fast", altered=True)


def test_what_is_decoded() -> None:
    rich, rqa, rank, rar = (
        Kind.CONTEXT_RICH_QA,
        Kind.RETRIEVAL_AUGMENTED_QA,
        Kind.CONTEXT_RANKING,
        Kind.RETRIEVAL_AUGMENTED_RANKING,
    )
    assert decodings(example(rich, GOLD)) == [((0,), "red fox", 1.0)]
    assert decodings(example(rich, CUT)) == [((0,), ABSTENTION, 1.0)]
    assert decodings(example(rqa, OTHER, GOLD, TWIN)) == [
        ((0, 1, 2), "red fox", 1.0),
        ((1,), "red fox", ALONE),
        ((0,), ABSTENTION, ABSTAIN),
    ]
    assert decodings(example(rqa, OTHER, CUT)) == [
        ((0, 1), ABSTENTION, 1.0),
        ((0,), ABSTENTION, ABSTAIN),
    ]
    assert decodings(example(rank, GOLD)) == [((0,), "red fox", ALONE)]
    assert decodings(example(rank, OTHER)) == [((0,), ABSTENTION, ABSTAIN)]
    assert decodings(example(rar, GOLD, OTHER)) == [((0,), "red fox", ALONE), ((1,), ABSTENTION, ABSTAIN)]
    # two gold passages answer together only
    assert decodings(example(rqa, GOLD, GOLD)) == [((0, 1), "red fox", 1.0)]
    assert decodings(example(rank, GOLD, form=Form.CLAIM)) == []


def test_the_losses_are_those_of_the_model_asked_one_by_one(learner: PointerLearner) -> None:
    made = [
        example(Kind.RETRIEVAL_AUGMENTED_QA, OTHER, GOLD, TWIN),
        example(Kind.CONTEXT_RICH_QA, GOLD),
        example(Kind.CONTEXT_RANKING, OTHER),
    ]
    with torch.no_grad():
        found = {name: float(value) for name, value in learner.module(learner.collate(made)).items()}
        answer = verdict = choice = 0.0
        for one in made:
            for places, text, weight in decodings(one):
                answer += weight * nll(learner, one, places, text)
            judged = {
                at: log_odds(learner, one, at) for at, s in enumerate(one.shown) if s.gold or s.irrelevant
            }
            losses = [-(true if one.shown[at].gold else false) for at, (true, false) in judged.items()]
            verdict += sum(losses) / len(losses)
            if len(judged) > 1:  # the gold passage among those surely without the answer
                scores = torch.tensor([true - false for true, false in judged.values()])
                gold = [one.shown[at].gold for at in judged].index(True)
                choice -= float(scores.log_softmax(0)[gold])
    assert found["answer"] == pytest.approx(answer / 3, rel=1e-4)
    assert found["verdict"] == pytest.approx(verdict / 3, rel=1e-4)
    assert found["choice"] == pytest.approx(choice / 3, rel=1e-4)
    assert found["choice"] > 0
    expected = found["answer"] + POINTWISE * found["verdict"] + LISTWISE * found["choice"]
    assert found["loss"] == pytest.approx(expected)


def test_a_kind_alone_teaches_what_it_asks(recipe: Recipe) -> None:
    reader = tiny_models.pointer()
    stage = recipe.stage(2).model_copy(update={"kinds_apart": True})
    learner = PointerLearner(reader.model, reader.tokenizer, stage)
    rich, rqa, rank, rar = (
        example(Kind.CONTEXT_RICH_QA, GOLD),
        example(Kind.RETRIEVAL_AUGMENTED_QA, OTHER, GOLD, TWIN),
        example(Kind.CONTEXT_RANKING, OTHER),
        example(Kind.RETRIEVAL_AUGMENTED_RANKING, GOLD, OTHER),
    )
    assert decodings(rqa, kind_alone=True) == [((0, 1, 2), "red fox", 1.0)]
    assert decodings(rar, kind_alone=True) == decodings(rank, kind_alone=True) == []
    with torch.no_grad():
        answers, ranks, both = (
            {name: float(value) for name, value in learner.module(learner.collate(made)).items()}
            for made in ([rich, rqa], [rank, rar], [rich, rqa, rank, rar])
        )
        expected = nll(learner, rich, (0,), "red fox") + nll(learner, rqa, (0, 1, 2), "red fox")
    assert answers["answer"] == pytest.approx(expected / 2, rel=1e-4)
    assert answers["verdict"] == answers["choice"] == 0
    assert ranks["answer"] == 0
    assert ranks["verdict"] > 0
    assert ranks["choice"] > 0
    for name in ("answer", "verdict", "choice"):
        assert both[name] == pytest.approx((answers[name] + ranks[name]) / 2, rel=1e-4)


def nll(learner: PointerLearner, one: Example, places: tuple[int, ...], text: str) -> float:
    """Mean over the tokens of ``text`` and its end, by the model's own forward pass."""
    model = learner.model
    rows = [learner.collate([dataclasses.replace(one, shown=(one.shown[at],))]).runs[0] for at in places]
    length = max(ids.shape[1] for ids, _, _ in rows)
    inputs = [
        torch.stack([torch.nn.functional.pad(row[part][0], (0, length - row[part].shape[1])) for row in rows])
        for part in range(3)
    ]
    target = learner._target(text)
    decoder = torch.tensor([[model.config.answer_token_id, *target[:-1]]])
    logits = model(*(part.unsqueeze(0) for part in inputs), decoder_input_ids=decoder).logits[0]
    return -float(logits[range(len(target)), list(target)].mean())


def log_odds(learner: PointerLearner, one: Example, at: int) -> tuple[float, float]:
    model = learner.model
    ids, mask, types = learner.collate([dataclasses.replace(one, shown=(one.shown[at],))]).runs[0]
    start = torch.tensor([[model.config.relevance_token_id]])
    with torch.no_grad():
        logits = model(ids, mask, types, decoder_input_ids=start).logits[0, 0]
    return float(logits[model.config.true_token_id]), float(logits[model.config.false_token_id])


def test_several_gold_passages_are_each_chosen_among_the_others(learner: PointerLearner) -> None:
    second = shown("foxes are red in this wood", gold=True)
    one = example(Kind.RETRIEVAL_AUGMENTED_RANKING, GOLD, OTHER, second)
    with torch.no_grad():
        found = float(learner.module(learner.collate([one]))["choice"])
        scores = torch.tensor(
            [true - false for true, false in (log_odds(learner, one, at) for at in range(3))]
        )
    by_hand = [-float(scores[[at, 1]].log_softmax(0)[0]) for at in (0, 2)]
    assert found == pytest.approx(sum(by_hand) / 2, rel=1e-4)


def test_what_may_or_may_not_answer_is_not_judged(learner: PointerLearner) -> None:
    batch = learner.collate([example(Kind.RETRIEVAL_AUGMENTED_QA, TWIN, CUT, GOLD, OTHER)])
    assert sorted(batch.verdicts.tolist()) == [-1, -1, 0, 1]
    assert batch.shares.sum() == pytest.approx(1)


def test_a_long_passage_is_cut_around_its_answer(learner: PointerLearner, recipe: Recipe) -> None:
    text = " ".join(["word"] * 400) + " a red fox runs"
    one = example(Kind.CONTEXT_RICH_QA, shown(text, gold=True))
    ids = learner.collate([one]).runs[0][0][0].tolist()
    assert len(ids) == recipe.stage(2).max_length
    fox = learner._tokenizer.ids("red fox")
    assert any(tuple(ids[at : at + len(fox)]) == fox for at in range(len(ids)))
    assert learner.cost(one) == recipe.stage(2).max_length


def test_the_frozen_layers_stay_and_the_rest_has_two_rates(learner: PointerLearner, recipe: Recipe) -> None:
    stage = recipe.stage(2).model_copy(update={"head_learning_rate": 0.5})
    encoder, rest = learner.parameter_groups(stage)
    assert (encoder["lr"], rest["lr"]) == (stage.learning_rate, 0.5)
    together = {id(p) for p in (*encoder["params"], *rest["params"])}
    assert together == {id(p) for p in learner.model.parameters() if p.requires_grad}
    assert {id(p) for p in encoder["params"]} == {id(p) for p in learner.model.encoder.layers[1].parameters()}


def test_thawing_trains_lower_layers_too(learner: PointerLearner) -> None:
    unfreeze(learner.model, 0)
    assert all(p.requires_grad for p in learner.model.encoder.layers.parameters())
    assert not any(p.requires_grad for p in learner.model.encoder.embeddings.parameters())
    with pytest.raises(RecipeError, match="from 0 to 0"):
        unfreeze(learner.model, 1)


def test_conversations_are_refused(learner: PointerLearner) -> None:
    with pytest.raises(RecipeError, match="no conversations: take s "):
        learner.check([example(Kind.SFT)])


def test_judging_answers_or_ranks(learner: PointerLearner, squad: Path, recipe: Recipe) -> None:
    blend = Blend(recipe, squad)
    made = [blend[index] for index in range(12)]
    judged = learner.predict(made)
    for one, found in zip(made, judged, strict=True):
        assert (found.text is None) is (one.kind is Kind.CONTEXT_RANKING)
        assert (found.probability is None) is (one.kind is not Kind.CONTEXT_RANKING)
        if found.probability is not None:
            true, false = log_odds(learner, one, 0)
            expected = float(torch.sigmoid(torch.tensor(true - false)))
            assert found.probability == pytest.approx(expected, abs=1e-4)
    assert learner.module.training


def test_what_is_saved_is_the_shipped_form(learner: PointerLearner, tmp_path: Path) -> None:
    learner.save(tmp_path / "model")
    assert {path.name for path in (tmp_path / "model").iterdir()} == {WEIGHTS, artifact.CONFIG}
