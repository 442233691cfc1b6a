"""Ensembles of the settings, their files of weights, and the asks that name them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb
from evenmesh.generator.v1 import generator_service_pb2 as generator_pb
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.wire.errors import InvalidField
from evenmesh_core.ensemble import vote
from evenmesh_core.text_metrics import token_f1
from evenmesh_orchestrator import codec
from evenmesh_orchestrator.asks.request import Defaults, read_ensemble
from evenmesh_orchestrator.ensembles.definitions import (
    Ensemble,
    EnsembleDefinition,
    equal_weights,
    read_ensembles,
)
from evenmesh_orchestrator.ensembles.votes import LocalVoteSession
from evenmesh_orchestrator.ports import VoteState
from tests.unit.orchestrator.fakes import SOURCES

MEMBERS = ("Wiki@10", "SE@RR@5&Wiki@5@CP", "PK", "ReFree")


def _weights(folder: Path, **changes: Any) -> Path:
    """What `evenmesh eval vote --tune` writes, with more than is looked at."""
    path = folder / "weights.json"
    written = {
        "study": "vote",
        "retrievers": list(reversed(MEMBERS)),
        "retriever_weights": [0.1, 0.2, 0.3, 0.4],
        "similarities": ["token_f1", "containment_em"],
        "similarity_weights": [0.6, 0.2],
        "rows": [],
    }
    path.write_text(json.dumps(written | changes))
    return path


def _ensembles(**definition: Any) -> Mapping[str, Ensemble]:
    return read_ensembles({"hub": EnsembleDefinition(members=MEMBERS, **definition)}, SOURCES)


def _read(ensembles: Mapping[str, Ensemble] | None = None, **request: Any) -> Any:
    asked = {"question": "Which river?"} | request
    defaults = Defaults("demo", "rankrag", SOURCES, ensembles or {})
    return read_ensemble(pb.AskRequest(**asked), defaults)


def test_weights_are_of_the_task(tmp_path: Path) -> None:
    ensemble = _ensembles(weights={"qa": _weights(tmp_path)}, pooling="max")["hub"]
    assert tuple(ensemble.vote("other").retriever_weights) == (1.0,) * 4
    vote = ensemble.vote("qa")
    # The file has the members in another order.
    assert tuple(vote.retriever_weights) == (0.4, 0.3, 0.2, 0.1)
    similarities = dict(zip(vote.similarities, vote.similarity_weights, strict=True))
    assert similarities == {"token_f1": 0.6, "containment_em": 0.2}
    assert vote.pooling == evaluator_pb.VoteRequest.POOLING_MAX


def test_weights_for_any_task_hold_where_a_task_has_none(tmp_path: Path) -> None:
    ensemble = _ensembles(weights={"*": _weights(tmp_path)})["hub"]
    assert tuple(ensemble.vote("whatever").retriever_weights) == (0.4, 0.3, 0.2, 0.1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"retrievers": ["Wiki@10", "PK", "ReFree", "SE"]}, "has weights of Wiki@10, PK, ReFree, SE"),
        ({"retriever_weights": [0.1]}, "4 names and 1 weights"),
        ({"retriever_weights": [0.1, 0.1, 0.05, 0]}, "nobody can win"),
        ({"retriever_weights": [0.1, 2.0, 0.05, 0]}, "outside"),
        ({"similarities": "x"}, "similarities"),
    ],
)
def test_a_wrong_file_of_weights_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match="ensemble hub: ") as caught:
        _ensembles(weights={"qa": _weights(tmp_path, **changes)})
    assert words in str(caught.value)


def test_a_file_that_is_not_there_or_not_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No such file"):
        _ensembles(weights={"qa": tmp_path / "none.json"})
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        _ensembles(weights={"qa": tmp_path / "bad.json"})


@pytest.mark.parametrize(
    ("members", "words"),
    [
        (["Wiki@10"], "at least 2"),
        (["Wiki@10", "Wiki@10"], "twice"),
        (["Wiki@10", "Wiki @010"], "has Wiki@10 twice"),
        (["Wiki@10", "Nowhere@3"], "there is no source 'Nowhere'"),
        (["Wiki@10", "Wiki@@3"], "column"),
    ],
)
def test_members_that_cannot_be_run_are_refused(members: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_ensembles({"hub": EnsembleDefinition(members=members)}, SOURCES)


def test_an_ask_names_an_ensemble(tmp_path: Path) -> None:
    ensembles = _ensembles(weights={"qa": _weights(tmp_path)})
    found = _read(ensembles, ensemble={"name": "hub"}, agent={"task_id": "qa"}, reranker="rankrag")
    assert [ask.expression.text for ask in found.members] == list(MEMBERS)
    assert [ask.augmentation for ask in found.members] == [
        generator_pb.AUGMENTATION_UNSPECIFIED,
        generator_pb.AUGMENTATION_COMPRESSION,
        generator_pb.AUGMENTATION_PARAMETRIC_KNOWLEDGE,
        generator_pb.AUGMENTATION_RETRIEVAL_FREE,
    ]
    assert [ask.reranker for ask in found.members] == ["none", "rankrag", "none", "none"]
    assert tuple(found.vote.retriever_weights) == (0.4, 0.3, 0.2, 0.1)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({"ensemble": {}}, "ensemble"),
        ({"ensemble": {"name": "hub", "expressions": ["Wiki", "SE"]}}, "ensemble"),
        ({"ensemble": {"name": "none"}}, "ensemble.name"),
        ({"ensemble": {"expressions": ["Wiki"]}}, "ensemble.expressions"),
        ({"ensemble": {"expressions": ["Wiki"] * 21}}, "ensemble.expressions"),
        ({"ensemble": {"expressions": ["Wiki", "Wiki"]}}, "ensemble.expressions[1]"),
        ({"ensemble": {"expressions": ["Wiki@5", " Wiki @05"]}}, "ensemble.expressions[1]"),
        ({"ensemble": {"expressions": ["Wiki", "Nowhere"]}}, "ensemble.expressions[1]"),
        ({"ensemble": {"expressions": ["Wiki", "SE"]}, "sampling": {}}, "sampling"),
        ({"ensemble": {"expressions": ["Wiki", "SE"]}, "expression": "SE"}, "expression"),
        ({"ensemble": {"expressions": ["Wiki", "SE"]}, "num_answers": 0}, "num_answers"),
        ({"ensemble": {"expressions": ["Wiki", "SE"]}, "augmentation": 1}, "augmentation"),
        ({"ensemble": {"expressions": ["Wiki", "SE"]}, "k": 3}, "k"),
        ({"ensemble": {"expressions": ["Wiki", "SE"]}, "question": " "}, "question"),
    ],
)
def test_bad_input_names_the_field(request_: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidField) as caught:
        _read(_ensembles(), **request_)
    assert caught.value.field == field


def test_members_share_the_labels() -> None:
    """The labels of a request can be megabytes, and an ensemble has up to twenty members."""
    labels = evaluator_pb.Labels(references=["Rhine"], useful_passage_ids=["b", "a"], has_useful=True)
    members = pb.Ensemble(expressions=MEMBERS)
    read = read_ensemble(
        pb.AskRequest(question="Which river?", labels=labels, ensemble=members),
        Defaults("demo", "rankrag", SOURCES),
    )
    assert list(read.ask.labels.useful_passage_ids) == ["a", "b"]
    assert all(member.labels is read.ask.labels for member in read.members)


@pytest.mark.parametrize(("ensembles", "has"), [(None, "it has none"), (_ensembles(), "it has hub")])
def test_an_unknown_ensemble_names_those_there_are(
    ensembles: Mapping[str, Ensemble] | None, has: str
) -> None:
    with pytest.raises(InvalidField) as caught:
        _read(ensembles, ensemble={"name": "mixed"})
    assert caught.value.message == f"the orchestrator has no ensemble 'mixed'; {has}"


def test_the_vote_is_written_for_the_evaluator() -> None:
    ensemble = _ensembles(
        similarities={"token_f1": 0.6, "nli": 0.2},
        pooling="plurality",
        threshold=0.7,
        retriever_filter=0.2,
        drop_filtered=True,
    )["hub"]
    start = codec.vote_start(ensemble.vote("qa")).start
    assert (start.num_answers, list(start.vote.retriever_weights)) == (4, [1.0] * 4)
    assert (list(start.vote.similarities), list(start.vote.similarity_weights)) == (
        ["token_f1", "nli"],
        [0.6, 0.2],
    )
    assert start.vote.pooling == evaluator_pb.VoteRequest.POOLING_PLURALITY
    assert (start.vote.threshold, start.vote.retriever_filter, start.vote.drop_filtered) == (0.7, 0.2, True)
    assert codec.vote_answer(1, None).answer.missing
    assert codec.vote_answer(1, "x").answer.text == "x"


async def test_a_vote_here_is_the_papers_vote() -> None:
    answers, weights = ["the Rhine", "Rhine river", "Elbe"], (0.3, 0.6, 0.5)
    wanted = equal_weights(("a", "b", "c")).vote("qa")
    wanted.retriever_weights[:] = weights
    session = LocalVoteSession(wanted)
    state = VoteState(None, decided=False)
    for member, answer in enumerate(answers):
        state = await session.add(member, answer)
    similarity = [[token_f1(one, other) for other in answers] for one in answers]
    wanted_vote = vote([similarity], [1.0], weights)
    assert (state.winner, state.decided) == (wanted_vote.winner, True)
    assert state.scores == pytest.approx(wanted_vote.scores)
    assert state.similarities[:2] == pytest.approx(similarity[2][:2])
    assert math.isnan(state.similarities[2])


async def test_who_is_missing_neither_wins_nor_votes() -> None:
    session = LocalVoteSession(equal_weights(("a", "b", "c")).vote("qa"))
    nobody = await session.add(0, None)
    assert (nobody.winner, nobody.decided, nobody.similarities) == (None, False, ())
    assert (await session.add(2, "b")).winner == 2
    last = await session.add(1, "b")
    assert (last.winner, last.decided) == (1, True)
