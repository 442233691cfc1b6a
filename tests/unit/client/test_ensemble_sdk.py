"""Ensembles of the SDK and the command line: what is asked, and how the vote is shown."""

import pytest

from evenmesh.codec import messages as codec
from evenmesh.commands import main
from evenmesh.common.v1 import common_pb2
from evenmesh.generator.v1 import generator_service_pb2 as generator_pb2
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.types.events import AskResult, Failed, Ranked, Vote
from evenmesh.types.request import ask_request
from tests.support.scripted import ScriptedMesh


def _script() -> list[pb.AskResponse]:
    def retrieved(name: str, expression: str) -> pb.AskResponse:
        passage = common_pb2.Passage(id=name, title=f"Title {name}", text="t", attributes={"provider": "P"})
        return pb.AskResponse(
            retrieved=pb.Retrieved(passages=[passage], scores=[1.0], retriever=expression, index_version="v1")
        )

    def answered(member: str, text: str, cites: str) -> pb.AskResponse:
        event = pb.AnswerEvent(answer=generator_pb2.Answer(text=text, model="m"), member=member)
        event.citations.add(passage_id=cites, provider="P", rank=1)
        return pb.AskResponse(answer=event)

    ranked = pb.Ranked(contexts=common_pb2.Rankings(depth=1, indices=[0]), reranker="none", member="Wiki@1")
    error = common_pb2.ItemError(code="UNAVAILABLE", reason="AWAY", message="source SE: away")
    return [
        retrieved("w1", "Wiki@1"),
        pb.AskResponse(ranked=ranked),
        answered("Wiki@1", "Rhine", "w1"),
        pb.AskResponse(
            vote=pb.VoteEvent(
                answer="Rhine",
                member="Wiki@1",
                num_answers=1,
                num_missing=2,
                missing=["SE", "News"],
                may_change=True,
            )
        ),
        retrieved("n1", "News"),
        answered("News", "the Rhine", "n1"),
        pb.AskResponse(failed=pb.AnswerFailed(error=error, member="SE")),
        pb.AskResponse(
            vote=pb.VoteEvent(
                answer="the Rhine", member="News", num_answers=2, num_missing=1, missing=["SE"], final=True
            )
        ),
        pb.AskResponse(done=pb.Done(ask_id="a", run_id="r", total_ms=5.0)),
    ]


def test_an_ask_says_its_ensemble() -> None:
    assert ask_request("q", {"ensemble": "hub"}).ensemble.name == "hub"
    listed = ask_request("q", {"ensemble": ["Wiki@5", "PK"]}).ensemble
    assert (listed.name, list(listed.expressions)) == ("", ["Wiki@5", "PK"])
    assert not ask_request("q", {}).HasField("ensemble")


def test_a_result_has_the_vote() -> None:
    events = [one for message in _script() if (one := codec.event(message)) is not None]
    result = AskResult.of("q", events)

    assert result.vote == Vote("the Rhine", 2, 1, False, "News", ("SE",), True)
    assert (result.text, [one.passage_id for one in result.citations]) == ("the Rhine", ["n1"])
    assert [one.member for one in result.answers] == ["Wiki@1", "News"]
    assert result.failures == (Failed((), "UNAVAILABLE", "AWAY", "source SE: away", "", "SE"),)
    assert result.retrieved is not None
    assert [one.id for one in result.retrieved.passages] == ["w1", "n1"]
    assert result.retrieved.retriever == "Wiki@1, News"
    assert result.ranked == Ranked(((0,),), (), "none", "", "Wiki@1")


def test_ask_shows_the_vote_and_who_is_missing(
    at_home: ScriptedMesh, nobodys_terminal: None, capsys: pytest.CaptureFixture[str]
) -> None:
    at_home.orchestrator.events = _script()

    assert main(["ask", "Which river?", "--ensemble", "Wiki@1, SE,News", "--task", "qa"]) == 0

    out, _ = capsys.readouterr()
    lines = [line.rstrip() for line in out.splitlines()]
    assert lines[0] == "the Rhine"
    assert "  [1] Title n1  P  n1" in lines
    assert "Votes of 2 answers" in lines
    assert "*  News    the Rhine" in lines
    assert "missing: SE" in lines
    assert "! no answer of SE: source SE: away (AWAY)" in lines
    (request,) = at_home.orchestrator.requests
    assert list(request.ensemble.expressions) == ["Wiki@1", "SE", "News"]
    assert (request.agent.task_id, request.agent.model_id) == ("qa", "")

    assert main(["ask", "Which river?", "--task", "qa", "--agent-model", "t5"]) == 0
    request = at_home.orchestrator.requests[-1]
    assert (request.agent.task_id, request.agent.model_id) == ("qa", "t5")
