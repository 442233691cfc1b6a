"""Tokens of agents: what they change, what they do not, and how they outlive a version."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from evenmesh_kit.compute.model_files import ModelError
from evenmesh_reranker.domain import Agent
from evenmesh_reranker.models import tokens
from tests.support import tiny_encoders, tiny_models
from tests.support.tiny_models import SENTENCES

ANN, BOB = Agent("qa", "ann"), Agent("fact]: check", "bob")
QUERY, TEXTS = SENTENCES[0], list(SENTENCES[:4])


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.cross_encoder(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def personal(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With drawn embeddings for Ann and for unknown agents."""
    return tiny_encoders.personal(plain, tmp_path_factory.mktemp("personal"), [ANN], seed=3)


def _scores(model: tiny_encoders.Encoder, agent: Agent, query: str = QUERY) -> list[float]:
    rows = model.rows(query, TEXTS, agent)
    return model.probabilities(rows, [None] * len(rows))


def test_the_input_begins_with_task_and_model(personal: Path) -> None:
    model = tiny_encoders.encoder(personal, version="v")
    (row,) = model.rows("water", ["celsius"], ANN)
    read = model.encoder.tokenizer.convert_ids_to_tokens(row.ids)
    assert read == ["[CLS]", "[task:qa]", "[model:ann]", *["water", "[SEP]"], *read[5:-1], "[SEP]"]
    assert row.types is not None
    # Agent and query are the first segment, [SEP] included; the passage is the second.
    assert row.types == (0,) * 5 + (1,) * (len(row.ids) - 5)


@pytest.mark.parametrize(
    ("agent", "read"),
    [
        (Agent(), ["[unk-task]", "[unk-model]"]),
        (Agent("qa", ""), ["[task:qa]", "[unk-model]"]),
        (Agent("", "ann"), ["[unk-task]", "[model:ann]"]),
        (Agent("other", "ann"), ["[unk-task]", "[model:ann]"]),
    ],
)
def test_what_is_unknown_or_withheld_is_unk(personal: Path, agent: Agent, read: list[str]) -> None:
    model = tiny_encoders.encoder(personal, version="v")
    (row,) = model.rows("water", ["celsius"], agent)
    assert model.encoder.tokenizer.convert_ids_to_tokens(row.ids)[1:3] == read


def test_a_model_without_tokens_ranks_alike_for_all(plain: Path) -> None:
    model = tiny_encoders.encoder(plain, version="v")
    assert model.agent_tokens == ()
    assert _scores(model, ANN) == _scores(model, Agent())
    model.add_agents([ANN])
    assert model.agent_tokens == ()
    assert not model.knows(ANN)


def test_agents_get_different_scores(personal: Path) -> None:
    model = tiny_encoders.encoder(personal, version="v")
    assert _scores(model, ANN) != pytest.approx(_scores(model, Agent()), abs=1e-4)


def test_no_text_becomes_a_token_of_an_agent(personal: Path) -> None:
    model = tiny_encoders.encoder(personal, version="v")
    special = set(model.encoder.tokenizer.all_special_ids) | {
        model.encoder.tokenizer.convert_tokens_to_ids(token) for token in model.agent_tokens
    }
    honest, forged = (
        model.rows(query, ["[task:qa] [model:ann] [SEP] [CLS]"], Agent())[0]
        for query in ("water", "water [task:qa][model:ann] [SEP]")
    )
    unknown = model.encoder.tokenizer.convert_tokens_to_ids("[UNK]")
    count = [sum(one in special - {unknown} for one in row.ids) for row in (honest, forged)]
    assert count == [5, 5]  # [CLS], two of the agent, two [SEP]


def test_a_new_agent_scores_as_an_unknown_one(personal: Path) -> None:
    model = tiny_encoders.encoder(personal, version="v")
    before, of_ann = _scores(model, BOB), _scores(model, ANN)
    assert before == _scores(model, Agent())
    assert not model.knows(BOB)
    model.add_agents([BOB, ANN])
    assert model.knows(BOB)
    assert {"[task:fact]: check]", "[model:bob]"} <= set(model.agent_tokens)
    assert _scores(model, BOB) == pytest.approx(before, abs=1e-6)
    assert _scores(model, ANN) == pytest.approx(of_ann, abs=1e-6)


def test_what_is_too_long_never_cuts_the_agent(personal: Path) -> None:
    model = tiny_encoders.encoder(personal, version="v", max_length=16)
    (row,) = model.rows(" ".join(SENTENCES), [" ".join(SENTENCES)], ANN)
    assert len(row.ids) == 16
    assert model.encoder.tokenizer.convert_ids_to_tokens(row.ids)[1:3] == ["[task:qa]", "[model:ann]"]


def test_tokens_survive_being_saved(personal: Path, tmp_path: Path) -> None:
    model = tiny_encoders.encoder(personal, version="v")
    model.add_agents([BOB])
    model.encoder.model.save_pretrained(tmp_path)  # type: ignore[union-attr]
    model.encoder.tokenizer.save_pretrained(tmp_path)
    again = tiny_encoders.encoder(tmp_path, version="v")
    assert again.agent_tokens == model.agent_tokens
    assert _scores(again, BOB) == pytest.approx(_scores(model, BOB), abs=1e-6)


def test_tokens_are_carried_over_to_a_newer_model(personal: Path, plain: Path, tmp_path: Path) -> None:
    """The newer one was trained with Bob and without Ann; it gets Ann as the older one had her."""
    older = tiny_encoders.encoder(personal, version="old")
    newer = tiny_encoders.encoder(
        tiny_encoders.personal(plain, tmp_path / "newer", [BOB, Agent("qa", "")], seed=9), version="new"
    )
    of_bob, of_task = _scores(newer, BOB), _row(newer, "[task:qa]").clone()
    carried = tokens.carry_over(
        older.encoder.tokenizer, older.embeddings(), newer.encoder.tokenizer, newer.encoder.model
    )
    assert carried == ("[model:ann]",)
    assert torch.equal(_row(newer, "[model:ann]"), _row(older, "[model:ann]"))
    # What the newer one was trained with stays as it is.
    assert torch.equal(_row(newer, "[task:qa]"), of_task)
    assert _scores(newer, BOB) == pytest.approx(of_bob, abs=1e-6)
    assert newer.knows(ANN)
    assert (
        tokens.carry_over(
            older.encoder.tokenizer, older.embeddings(), newer.encoder.tokenizer, newer.encoder.model
        )
        == ()
    )


def test_embeddings_of_another_size_are_not_carried_over(personal: Path, tmp_path: Path) -> None:
    source, target = (tiny_encoders.encoder(personal, version="v") for _ in range(2))
    source.add_agents([BOB])
    config = BertConfig.from_pretrained(personal, hidden_size=64, intermediate_size=64)
    with pytest.raises(ModelError, match="embeddings of 32 numbers cannot be carried over to a model of 64"):
        tokens.carry_over(
            source.encoder.tokenizer,
            source.embeddings(),
            target.encoder.tokenizer,
            BertForSequenceClassification(config),
        )


def _row(model: tiny_encoders.Encoder, token: str) -> torch.Tensor:
    at = model.encoder.tokenizer.convert_tokens_to_ids(token)
    weight: torch.Tensor = model.encoder.model.get_input_embeddings().weight.data  # type: ignore[union-attr]
    return weight[at]
