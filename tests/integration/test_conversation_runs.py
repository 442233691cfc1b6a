"""Conversations of the real mesh: the SDK, `evenmesh chat` and `evenmesh harvest`, killed and gone on with."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from evenmesh import AsyncClient, Client, LookedFor, MeshError
from evenmesh.local_mesh import read_running
from evenmesh.types.conversation import group_target
from evenmesh_core import earlier_words
from evenmesh_core.group_fairness import Attribute, conversation, parse_transcripts
from evenmesh_lab.files import read_attributes, read_conversations
from evenmesh_studies import demo
from tests.integration.conftest import DEMO, RunningMesh
from tests.support.command_line import kill_at, run_here

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(600)]

TIMEOUT_S = 600.0
QUESTIONS = [one.question for one in demo.questions()[:3]]


def command(mesh: RunningMesh, *arguments: str) -> "subprocess.Popen[str]":
    """Starts the command line."""
    return subprocess.Popen(
        [sys.executable, "-m", "evenmesh", *arguments],
        env=os.environ | {"EVENMESH_HOME": str(mesh.home)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Who runs the tests in the background has this signal ignored, and so would the command.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def test_three_turns_are_measured_as_the_saved_text_says(client: Client) -> None:
    providers = [one.attributes.get("provider", "") for one in client.passages(DEMO)]
    target = group_target(providers, "provider", own=True)
    assert target is not None
    assert target.shares is not None
    how = {"targets": [target], "history_turns": 2}
    with client.converse(collection=DEMO, reranker="none", conversation=how) as talk:  # type: ignore[arg-type]
        results = [talk.answer(question) for question in QUESTIONS]
        text = f"##### demo\n{talk.transcript}"
    assert [result.turn for result in results] == [1, 2, 3]
    assert results[0].looked_for == QUESTIONS[0]
    assert results[1].looked_for.startswith(QUESTIONS[1] + " ")
    last = results[-1].report
    assert last is not None
    assert last.entities or any(result.report and result.report.entities for result in results)
    (read,) = parse_transcripts(text)
    found = conversation(read.nuggets(), {"provider": Attribute(target.shares, "jsd")})
    assert last.relevance == pytest.approx(found.relevance)
    assert last.group_fairness == pytest.approx(found.group_fairness)
    assert sum(result.report.turn_relevance or 0 for result in results if result.report) == pytest.approx(
        found.relevance
    )
    for result in results:
        cited = [one.passage_id for one in result.ask.citations]
        assert result.report is not None
        assert [one.passage_id for one in result.report.entities] == cited


@contextmanager
def stopped_generator(mesh: RunningMesh) -> Iterator[None]:
    """The mesh's generator does not run within the block."""
    state = read_running(mesh.home)
    assert state is not None
    generator = psutil.Process(state.services["generator"].pid)
    generator.suspend()
    try:
        yield
    finally:
        generator.resume()


def test_a_turn_that_is_left_is_not_in_the_conversation(mesh: RunningMesh, client: Client) -> None:
    with client.converse(collection=DEMO, reranker="none") as talk:
        talk.answer(QUESTIONS[0])
        with stopped_generator(mesh):  # so that the turn cannot end before it is left
            for event in talk.ask(QUESTIONS[1]):
                if isinstance(event, LookedFor):
                    break
            else:
                raise AssertionError("the turn ended without an answer")
        second = talk.answer(QUESTIONS[2])
        assert second.turn == 2
        assert QUESTIONS[1] not in talk.transcript
        name = talk.id
    with client.converse(conversation_id=name) as again:
        assert again.answer(QUESTIONS[1]).turn == 3
        assert QUESTIONS[0] in again.transcript
    with client.converse(conversation_id="0" * 32) as lost:
        with pytest.raises(MeshError) as caught:
            lost.answer(QUESTIONS[0])
        assert caught.value.code.name == "NOT_FOUND"


@pytest.mark.asyncio
async def test_conversations_at_once_do_not_mix(mesh: RunningMesh) -> None:
    async with AsyncClient(mesh.addresses, timeout=240) as client:

        async def held(questions: list[str]) -> tuple[list[str], str]:
            async with client.converse(collection=DEMO, reranker="none") as talk:
                return [(await talk.answer(one)).text for one in questions], talk.transcript

        alone = [await held(questions) for questions in (QUESTIONS[:2], QUESTIONS[:0:-1])]
        together = await asyncio.gather(held(QUESTIONS[:2]), held(QUESTIONS[:0:-1]))
    assert list(together) == alone
    assert QUESTIONS[2] not in together[0][1]


def test_the_bundled_model_does_not_rewrite_and_words_are_looked_for(client: Client) -> None:
    how = {"history": "rewrite"}
    with client.converse(collection=DEMO, reranker="none", conversation=how) as talk:  # type: ignore[arg-type]
        talk.answer(QUESTIONS[0])
        second = talk.answer("And then?")
    assert [one.action for one in second.ask.degradations] == ["history_words"]
    assert second.looked_for.startswith("And then? ")


def test_the_bundled_model_reads_a_turn_with_words_of_those_before_it(client: Client) -> None:
    with client.converse(collection=DEMO, reranker="none") as talk:
        talk.answer(QUESTIONS[0])
        turn = "And then?"
        second = talk.answer(turn)
    query = earlier_words.balanced(turn, second.looked_for)
    read, alone = (
        client.answer(question, search=query, collection=DEMO, reranker="none").answers[0]
        for question in (second.looked_for, turn)
    )
    (said,) = second.ask.answers
    assert (said.text, said.confidence) == (read.text, read.confidence)
    assert said.confidence != alone.confidence, "the comparison would be vacuous"


def test_words_of_long_turns_are_ranked_by_as_many_as_the_model_reads(client: Client) -> None:
    """The bundled model reads 64 tokens of a question; a short turn after long ones was refused for more."""
    long = " ".join(f"chain{place} lubricant{place}" for place in range(20))
    with client.converse(collection=DEMO, reranker="rankrag") as talk:
        for place in range(2):
            talk.answer(f"{QUESTIONS[place]} {long[place * 100 :][:100]}")
        last = talk.answer(QUESTIONS[2])
    assert last.turn == 3
    assert not last.ask.degradations
    assert len(last.looked_for.split()) > len(QUESTIONS[2].split()) + 10


def test_chat_from_a_pipe(mesh: RunningMesh, tmp_path: Path) -> None:
    saved = tmp_path / "talk.txt"
    lines = [QUESTIONS[0], "", "And why?", "/target provider=collection", "/report", "/reset", QUESTIONS[1]]
    process = command(
        mesh,
        "chat",
        "-c",
        DEMO,
        "--fair",
        "provider",
        "--reranker",
        "none",
        "--save",
        str(saved),
        "--timeout",
        "240",
    )
    said, stderr = process.communicate("\n".join(lines), timeout=TIMEOUT_S)
    assert process.returncode == 0, stderr
    assert said.count("R 0.0") >= 3
    assert said.count("right with probability ") == 3
    assert "searching for: And why? " in stderr
    first, second = read_conversations(saved)
    assert (first.topic, second.topic) == ("chat", "chat-2")
    assert [len(one.turns) for one in (first, second)] == [4, 2]
    assert set(read_attributes(saved.with_suffix(".attributes.json"))) == {"provider"}

    process = command(mesh, "chat", "-c", DEMO, "--reranker", "none", "--json", "--timeout", "240")
    said, stderr = process.communicate(f"{QUESTIONS[0]}\n/nonsense\n/quit\n", timeout=TIMEOUT_S)
    assert process.returncode == 1
    assert "there is no /nonsense" in stderr
    assert "answer" in {json.loads(line)["event"] for line in said.splitlines()}


def test_ctrl_c_ends_a_chat_from_a_pipe(mesh: RunningMesh, tmp_path: Path) -> None:
    process = command(mesh, "chat", "-c", DEMO, "--reranker", "none", "--timeout", "240")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{QUESTIONS[0]}\n")
    process.stdin.flush()
    assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130


def topics(folder: Path) -> Path:
    """Three topics, one of them turn by turn, one of two rounds."""
    one, two, three = demo.questions()[:3]
    path = folder / "topics.jsonl"
    records = [
        {"topic": "T1", "turns": [one.question, two.question], "useful": [list(one.useful_passage_ids), []]},
        {"topic": "T2", "question": three.question},
        {"topic": "T3", "turns": [two.question]},
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def harvest(folder: Path, out: Path) -> tuple[str, ...]:
    """The command's words."""
    which = ("-c", DEMO, "--fair", "provider", "--alpha", "none,4", "-n", "2", "--retriever", "bm25")
    how = ("--reranker", "none", "-k", "2", "--in-flight", "2", "--timeout", "240")
    return ("harvest", str(topics(folder)), "-o", str(out), *which, *how)


def kept(out: Path) -> dict[str, bytes]:
    """What a harvest keeps, but the report, which has pictures."""
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.is_file() and (path.suffix in (".jsonl", ".txt", ".csv", ".journal"))
    }


def test_a_harvest_killed_and_gone_on_with_is_the_same_to_the_byte(mesh: RunningMesh, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    ended = run_here(mesh.home, *harvest(tmp_path, whole), figures=False)
    assert ended.status == 0, ended
    assert "Trials of a system against each other" in ended.out
    conversations = [json.loads(line) for line in (whole / "conversations.jsonl").read_text().splitlines()]
    # ranked has one trial, since all would be the same; α = 4 has two.
    assert [(one["system"], one["trial"], one["topic"]) for one in conversations] == [
        (system, trial, topic)
        for trial, system in ((1, "ranked"), (1, "alpha=4"), (2, "alpha=4"))
        for topic in ("T1", "T2", "T3")
    ]

    killed = tmp_path / "killed"
    for enough in (1, 3):
        status = kill_at(mesh.home, killed / "conversations.jsonl", enough, *harvest(tmp_path, killed))
        assert status == -signal.SIGKILL, "it was done before it could be killed"
    ended = run_here(mesh.home, *harvest(tmp_path, killed), figures=False)
    assert ended.status == 0, ended
    assert "going on after" in ended.err
    assert kept(killed) == kept(whole)


def test_problems_of_a_harvest_are_reported_before_anything_is_asked(
    mesh: RunningMesh, tmp_path: Path
) -> None:
    path = tmp_path / "topics.jsonl"
    path.write_text('{"topic": "a", "turns": ["x"], "useful": [["no-such-passage"]]}\n{"topic": "b"}\n')
    words = ("-c", DEMO, "-m", "no-such-model", "--fair", "colour", "--alpha", "1,1.0,x")
    ended = run_here(mesh.home, "harvest", str(path), "-o", str(tmp_path / "out"), *words)
    assert ended.status == 2
    for problem in (
        ":2: must have either",
        "no-such-model: there is no such model; there are",
        "fewer than two groups in 'colour'",
        "--alpha: given twice: 1",
        "--alpha has 'x'",
        "these useful passages are not in",
        "no-such-passage",
    ):
        assert problem in ended.err, problem
    assert not (tmp_path / "out").exists()
