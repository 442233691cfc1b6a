"""A tokenizer from its file reads pairs as transformers does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from evenmesh_reranker.backends.file_tokenizer import CONFIG, FileTokenizer
from evenmesh_reranker.domain import Agent
from evenmesh_reranker.models import pairs, token_names, tokens
from tests.support import tiny_encoders, tiny_models
from tests.support.tiny_models import SENTENCES

QUERIES = ["which lamp? [SEP]", "", *SENTENCES[:3]]
TEXTS = ["it is a café\n at Night! [CLS] " * 60, "?!", *SENTENCES[3:6]]
AGENTS = [Agent("qa", "ann"), Agent(), Agent("qa", ""), Agent("other", "ann"), Agent()]
INPUTS = ("input_ids", "token_type_ids", "attention_mask")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plain = tiny_models.cross_encoder(tmp_path_factory.mktemp("plain"))
    return tiny_encoders.personal(plain, tmp_path_factory.mktemp("personal"), [Agent("qa", "ann")])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("inputs", [INPUTS, ("input_ids", "attention_mask")])
@pytest.mark.parametrize("longest", [None, 16, 64])
def test_pairs_are_those_of_transformers(
    folder: Path, tmp_path: Path, inputs: tuple[str, ...], longest: int | None, side: str
) -> None:
    theirs = PreTrainedTokenizerFast.from_pretrained(
        folder, model_input_names=list(inputs), truncation_side=side
    )
    theirs.save_pretrained(tmp_path)
    assert json.loads((tmp_path / CONFIG).read_bytes())["truncation_side"] == side
    ours = FileTokenizer(tmp_path, inputs)
    for most in (8, longest):  # what was set for one call is not left to the next
        read = [pairs.rows(one, QUERIES, TEXTS, AGENTS, most) for one in (theirs, ours)]
        assert read[0] == read[1]
    assert len({row.ids[1:3] for row in read[1]}) == 4  # agents differ


def test_tokens_are_added_as_by_transformers(folder: Path) -> None:
    theirs, ours = PreTrainedTokenizerFast.from_pretrained(folder), FileTokenizer(folder, INPUTS)
    assert tokens.present(ours) == tokens.present(theirs) != ()
    new = sorted(token_names.agent_tokens(Agent("new", "one")))
    for one in (theirs, ours):
        assert one.add_tokens(new, special_tokens=True) == 2
        assert one.add_tokens(new, special_tokens=True) == 0
    assert ours.get_added_vocab() == theirs.get_added_vocab()
    assert len(ours) == len(theirs)
    assert [ours.convert_tokens_to_ids(one) for one in new] == theirs.convert_tokens_to_ids(new)
    read = [pairs.rows(one, new, new, [Agent("new", "one")] * 2, 64) for one in (theirs, ours)]
    assert read[0] == read[1]
    assert not {len(ours) - 1, len(ours) - 2} & set(read[1][0].ids[3:])  # no text becomes one of them


def test_a_pair_does_not_read_all_agents_of_a_tokenizer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed(_: object) -> dict[str, int]:
        raise AssertionError("all added tokens were read")

    for one in (PreTrainedTokenizerFast.from_pretrained(folder), FileTokenizer(folder, INPUTS)):
        ids = one.get_added_vocab()
        monkeypatch.setattr(type(one), "get_added_vocab", listed)
        monkeypatch.setattr(type(one), "added_tokens_decoder", property(listed), raising=False)
        found = [row.ids[1:3] for row in pairs.rows(one, QUERIES, TEXTS, AGENTS, 64)]
        assert found == [
            (
                ids.get(token_names.task_token(agent.task_id), ids[token_names.UNKNOWN_TASK]),
                ids.get(token_names.model_token(agent.model_id), ids[token_names.UNKNOWN_MODEL]),
            )
            for agent in AGENTS
        ]
