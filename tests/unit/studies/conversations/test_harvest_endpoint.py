"""`evenmesh harvest --openai` against a small server of this test that speaks the protocol."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from evenmesh.commands import main
from evenmesh_lab.files import read_conversations
from tests.support.scripted_http import HttpReply, HttpRequest, in_thread

REFUSAL = "I'm unable to help you with that, as I'm only a language model."


class Endpoint:
    """Lists a movie for each user turn so far; refuses what is about nothing; fails first if set to."""

    def __init__(self) -> None:
        self.base = ""
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.failures = 0
        self.status = 503

    async def __call__(self, request: HttpRequest, reply: HttpReply) -> None:
        body = request.json
        if self.failures:
            self.failures -= 1
            await reply.send(self.status, {"error": {"message": "not now"}})
            return
        self.asked.append(body)
        self.keys.append(request.headers.get("authorization", ""))
        assert request.path == "/v1/chat/completions"
        turns = [one["content"] for one in body["messages"] if one["role"] == "user"]
        text = f"Sure!\n# A movie\nMovie {len(turns)}: https://m.example/{body['seed']}/{len(turns)}"
        if "nothing" in turns[0]:
            text = REFUSAL
        await reply.send(200, {"model": "m-1", "choices": [{"message": {"content": text}}]})


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    with in_thread(endpoint) as server:
        endpoint.base = server.url
        yield endpoint


@pytest.fixture
def topics(tmp_path: Path) -> Path:
    path = tmp_path / "topics.jsonl"
    path.write_text(
        '{"topic": "M001", "question": "List movies", "format": "title, URL"}\n'
        '{"topic": "M002", "question": "List nothing"}\n'
    )
    return path


@dataclass(frozen=True)
class Done:
    """What the command ended with, and said."""

    returncode: int
    stdout: str
    stderr: str


Harvest = Callable[..., Done]


@pytest.fixture
def harvest(topics: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Harvest:
    """Runs the command, in this process: another one would import everything anew."""
    monkeypatch.setenv("EVENMESH_HARVEST_KEY", "secret")
    monkeypatch.setenv("EVENMESH_HOME", str(topics.parent / "home"))

    def harvested(*arguments: str) -> Done:
        status = main(["harvest", str(topics), *arguments])
        return Done(status, *capsys.readouterr())

    return harvested


@pytest.mark.slow
def test_conversations_are_held_written_to_be_judged_and_reported(
    endpoint: Endpoint, topics: Path, harvest: Harvest
) -> None:
    out = topics.parent / "out"
    endpoint.failures = 1
    arguments = ("-o", str(out), "--openai", endpoint.base, "-m", "m", "--fair", "RATINGS=low:1,high:1@rnod")
    first = harvest(*arguments, "--seed", "7")
    assert first.returncode == 0, first.stderr
    assert "the endpoint answers 503" in first.stderr
    assert "to be judged" in first.stderr
    assert set(endpoint.keys) == {"Bearer secret"}
    assert "secret" not in first.stdout + first.stderr
    # Two trials with seeds of their own; M001 has two turns, M002 breaks down in the first.
    assert [one["seed"] for one in endpoint.asked] == [7, 7, 7, 8, 8, 8]
    assert [len(one["messages"]) for one in endpoint.asked] == [1, 3, 1] * 2
    transcript = out / "transcripts" / "m-trial1.txt"
    assert transcript.read_text() == (
        "##### M001\n### U1\nList movies\nFormat: title, URL\n### S1 o\nSure!\n\\# A movie\n"
        "Movie 1: https://m.example/7/1\n#L?\n#RATINGS: (?)\n### U2\nCan you name a few more?\n### S2 o\nSure!\n"
        "\\# A movie\nMovie 2: https://m.example/7/2\n#L?\n#RATINGS: (?)\n##### M002\n### U1\nList nothing\n"
        f"### S1 x\n{REFUSAL}\n"
    )
    report = (out / "report" / "report.md").read_text()
    assert "Still to be judged" in report
    assert (out / "report" / "outcomes.png").stat().st_size > 1000

    # A person judges; the same command again asks nothing, and measures what they wrote.
    for trial in (1, 2):
        path = out / "transcripts" / f"m-trial{trial}.txt"
        path.write_text(path.read_text().replace("#L?", "#L2").replace("(?)", "(1,0)"))
    asked = len(endpoint.asked)
    second = harvest(*arguments, "--seed", "7")
    assert second.returncode == 0, second.stderr
    assert len(endpoint.asked) == asked
    assert "corrected by hand: m-trial1.txt, m-trial2.txt" in (out / "report" / "report.md").read_text()
    assert "Relevance and group fairness" in second.stdout
    assert transcript.read_text().count("#L2") == 2
    assert [one.topic for one in read_conversations(transcript)] == ["M001", "M002"]


def test_an_endpoint_that_refuses_ends_the_run_at_once(
    endpoint: Endpoint, topics: Path, harvest: Harvest
) -> None:
    endpoint.failures, endpoint.status = 1, 401
    found = harvest("-o", str(topics.parent / "out"), "--openai", endpoint.base, "-m", "m")
    assert found.returncode == 1
    assert "the endpoint answers 401" in found.stderr
    assert endpoint.asked == []


def test_all_problems_are_reported_before_anything_is_asked(
    endpoint: Endpoint, topics: Path, harvest: Harvest
) -> None:
    with topics.open("a") as stream:
        stream.write('{"topic": "M001", "question": "again"}\n{"topic": ""}\n')
    found = harvest(
        "-o",
        str(topics.parent / "out"),
        "--openai",
        "nowhere",
        "--alpha",
        "2",
        "--fair",
        "x",
        "--history",
        "all",
    )
    assert found.returncode == 2
    for problem in (
        ":3: repeats the topic 'M001' of line 1",
        ":4: topic: must be text",
        ":4: must have either a question or turns",
        "--openai is 'nowhere'",
        "--openai needs --model",
        "--alpha is for the mesh",
        "'x' needs --collection",
        "--history all: allowed: none, words, rewrite",
    ):
        assert problem in found.stderr, problem
    assert endpoint.asked == []
