"""Answers judged by a model of answer equivalence: a local classifier, a classifier's server, a chat server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertForSequenceClassification

from evenmesh.commands import main
from evenmesh.wire.errors import MeshError
from evenmesh_core.arrays import FloatArray
from evenmesh_core.errors import InvalidInput
from evenmesh_kit.remote.options import RemoteOptions
from evenmesh_lab.files import read_ensemble
from evenmesh_lab.files.failure import FileError
from evenmesh_lab.similarities import MissingModel, Models, Similarities
from evenmesh_lab.similarities.equivalence import Compared
from evenmesh_lab.similarities.similarity import Check, unchecked
from evenmesh_lab.studies import equivalence_judge
from evenmesh_lab.studies.correctness import correctness
from evenmesh_lab.studies.equivalence_judge import EquivalenceJudge
from evenmesh_studies.ensembles.equivalence_server import MOST_CHARACTERS, ServedEquivalence
from tests.support import tiny_models
from tests.support.scripted_http import HttpReply, HttpRequest, ScriptedHttp, in_thread

ASKED = Compared("Who wrote it?", "Ada Lovelace", "Lovelace")


class Known:
    """A model that finds candidates equivalent that share a word with the reference; counts what it is asked."""

    def __init__(self) -> None:
        self.asked: list[Compared] = []

    def probabilities(self, compared: Sequence[Compared], check: Check = unchecked) -> FloatArray:
        self.asked += compared
        return np.array(
            [0.9 if set(one.candidate.split()) & set(one.reference.split()) else 0.2 for one in compared]
        )


def test_an_answer_is_right_that_is_equivalent_to_any_reference() -> None:
    judge, model = EquivalenceJudge(known := Known()), known
    references = ("Ada Lovelace", "Countess of Lovelace")
    assert judge.scores("Who?", references, ["Lovelace", "Babbage", "the ada lovelace", ""]) == [1, 0, 1, 0]
    # equal after normalisation, or empty: not asked; the others with each reference, once
    assert [(one.candidate, one.reference) for one in model.asked] == [
        (one, reference) for one in ("Lovelace", "Babbage") for reference in references
    ]
    judge.scores("Who?", references, ["Babbage", "Lovelace"])
    assert judge.asked == len(model.asked) == 4
    judge.scores("Where?", references, ["Babbage"])
    assert judge.asked == 6  # another question


def test_few_judgements_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equivalence_judge, "MOST_KEPT", 2)
    judge = EquivalenceJudge(Known())
    for _ in range(2):
        assert judge.scores("Who?", ["Ada"], ["a", "b", "c"]) == [0, 0, 0]
    assert judge.asked > 3


def test_the_threshold_is_inclusive_and_checked() -> None:
    assert EquivalenceJudge(Known(), threshold=0.9).scores("Who?", ["Ada L"], ["Ada"]) == [1.0]
    assert EquivalenceJudge(Known(), threshold=0.91).scores("Who?", ["Ada L"], ["Ada"]) == [0.0]
    for threshold in (0.0, 1.1, float("nan")):
        with pytest.raises(InvalidInput, match="threshold"):
            EquivalenceJudge(Known(), threshold=threshold)


def _ensemble(tmp_path: Path, question: str = "Who wrote it?") -> Path:
    path = tmp_path / "ensemble.jsonl"
    lines = [
        {
            "query_id": "q",
            "retriever": "A",
            "answer": "Lovelace",
            "question": question,
            "references": ["Ada Lovelace"],
        },
        {"query_id": "q", "retriever": "B", "answer": "Babbage"},
        {"query_id": "q", "retriever": "C", "answer": "Lovelace", "correct": 0.25},
    ]
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return path


def test_it_judges_an_ensemble_where_the_file_does_not(tmp_path: Path) -> None:
    judge = EquivalenceJudge(Known())
    assert correctness(read_ensemble([_ensemble(tmp_path)]), judge).tolist() == [[1.0, 0.0, 0.25]]
    with pytest.raises(FileError, match="which answer_equivalence cannot judge: question is ''"):
        correctness(read_ensemble([_ensemble(tmp_path, "")]), judge)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sequence classifier of two labels with random weights, with the form of BEM."""
    source = tiny_models.cross_encoder(tmp_path_factory.mktemp("source"))
    folder = tmp_path_factory.mktemp("classifier")
    return tiny_models.classifier(folder, source, {0: "LABEL_0", 1: "LABEL_1"})


def _by_hand(folder: Path, one: Compared) -> float:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = BertForSequenceClassification.from_pretrained(folder).eval()
    read = tokenizer(one.candidate, f"{one.reference} [SEP] {one.question}", return_tensors="pt")
    with torch.no_grad():
        return float(model(**read).logits.softmax(1)[0, 1])


def test_a_local_classifier_judges_by_its_folder(classifier: Path) -> None:
    model = Similarities(Models(answer_equivalence=str(classifier))).equivalence()
    expected = _by_hand(classifier, ASKED)
    assert model.probabilities([ASKED])[0] == pytest.approx(expected, abs=1e-6)
    for threshold, right in ((expected - 1e-3, 1.0), (expected + 1e-3, 0.0)):
        judge = EquivalenceJudge(model, threshold=threshold)
        assert judge.scores(ASKED.question, [ASKED.reference], [ASKED.candidate]) == [right]


def test_the_command_judges_with_a_local_classifier(
    classifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right = _by_hand(classifier, ASKED) >= 0.5
    command = ["eval", "vote", str(_ensemble(tmp_path)), "--judge", "answer_equivalence", "--json", "-"]
    assert main([*command, "--answer-equivalence-model", str(classifier)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["retriever_accuracy"][0]["value"] == float(right)
    assert main(command) == 2
    assert "--answer-equivalence-model: not set" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(MissingModel, match="not set"):
        Similarities(Models()).equivalence()


Reply = Callable[[HttpRequest], Any]


@contextmanager
def _served(reply: Reply, status: int = 200) -> Iterator[tuple[str, ScriptedHttp]]:
    """Give the address of a server in a thread of its own, and the server."""

    async def script(request: HttpRequest, answer: HttpReply) -> None:
        await answer.send(status, reply(request))

    with in_thread(script) as server:
        yield server.url, server


def _judge_of(url: str, server: str = "tei", **options: Any) -> ServedEquivalence:
    return ServedEquivalence(RemoteOptions((url,)), server, **options)  # type: ignore[arg-type]


def _labels(request: HttpRequest) -> Any:
    return [
        [{"label": "LABEL_0", "score": 0.25}, {"label": "LABEL_1", "score": 0.75 if "L" in pair[0] else 0.1}]
        for pair in request.json["inputs"]
    ]


def test_a_classifier_on_a_server_reads_as_bem_does() -> None:
    with _served(_labels) as (url, server):
        model = _judge_of(url)
        compared = [ASKED, *(Compared("Who?", "r", f"c{at}" * 3_000) for at in range(40))]
        found = model.probabilities(compared)
        model.close()
    assert found.tolist() == [0.75, *[0.1] * 40]
    assert [one.path for one in server.requests] == ["/v1/predict"] * 2
    inputs = [pair for one in server.requests for pair in one.json["inputs"]]
    assert ["Lovelace", "Ada Lovelace [SEP] Who wrote it?"] in inputs
    assert max(len(pair[0]) for pair in inputs) == MOST_CHARACTERS


def _tokens(*tops: tuple[str, float]) -> Any:
    content = [{"top_logprobs": [{"token": one, "logprob": float(np.log(share))} for one, share in tops]}]
    return {"choices": [{"message": {"content": tops[0][0]}, "logprobs": {"content": content}}]}


def test_a_chat_server_says_yes_or_no_with_its_probability() -> None:
    with _served(lambda _: _tokens(("Yes", 0.5), (" no", 0.2), ("yes", 0.1), ("Maybe", 0.1))) as (
        url,
        server,
    ):
        model = _judge_of(url, "openai", model="judge")
        assert model.probabilities([ASKED]).tolist() == pytest.approx([0.6 / 0.8])
        model.close()
    (request,) = server.requests
    assert request.path == "/v1/chat/completions"
    assert (request.json["model"], request.json["max_tokens"], request.json["logprobs"]) == ("judge", 1, True)
    said = request.json["messages"][0]["content"]
    assert all(one in said for one in (ASKED.question, ASKED.reference, ASKED.candidate))


@pytest.mark.parametrize(
    ("server", "reply", "why"),
    [
        ("tei", [], "not a list of 1 results"),
        ("tei", {"error": "x"}, "not a list of 1 results"),
        ("tei", [[]], "one label or two"),
        (
            "tei",
            [[{"label": "a", "score": 0.5}, {"label": "b", "score": 0.5}]],
            "labels a, b mean equivalent",
        ),
        ("tei", [[{"label": "LABEL_1", "score": 2}]], "outside"),
        ("tei", [[{"label": "LABEL_1", "score": True}]], "no score"),
        ("openai", {"choices": [{"message": {"content": "yes"}}]}, "top_logprobs"),
        ("openai", [], "top_logprobs"),
        ("openai", _tokens(("Perhaps", 0.9)), "neither yes nor no"),
    ],
)
def test_a_reply_of_another_shape_is_named(server: str, reply: Any, why: str) -> None:
    with _served(lambda _: reply) as (url, _):
        model = _judge_of(url, server, model="judge")
        with pytest.raises(MeshError, match=why):
            model.probabilities([ASKED])
        model.close()


def test_a_server_that_refuses_or_is_away_is_named() -> None:
    with _served(lambda _: {"error": "no"}, status=401) as (url, _):
        model = _judge_of(url)
        with pytest.raises(MeshError) as refused:
            model.probabilities([ASKED])
        model.close()
    assert refused.value.reason == "REMOTE_KEY_REFUSED"
    model = _judge_of(url)
    with pytest.raises(MeshError) as away:
        model.probabilities([ASKED])
    model.close()
    assert away.value.reason == "REMOTE_UNAVAILABLE"


def test_the_command_judges_with_a_server_and_names_its_failures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["eval", "inconsistency", str(_ensemble(tmp_path)), "--judge", "answer_equivalence"]
    with _served(_labels) as (url, _):
        assert main([*command, "--answer-equivalence-url", url, "--json", "-"]) == 0
        found = json.loads(capsys.readouterr().out)
    assert found["judge"] == "answer_equivalence"
    assert found["correct"][0] == [True]
    assert main([*command, "--answer-equivalence-url", url]) != 0
    assert "cannot be reached" in capsys.readouterr().err
    for option, value, why in (
        ("--answer-equivalence-url", "ftp://x", "is not a base URL"),
        ("--answer-equivalence-server", "grpc", "allowed: tei, openai"),
        ("--answer-equivalence-server", "openai", "the model's name at the server"),
    ):
        given = ["--answer-equivalence-url", url] if option.endswith("server") else []
        assert main([*command, *given, option, value]) == 2
        assert why in " ".join(capsys.readouterr().err.split())
    assert main([*command[:-1], "bem"]) == 2
    assert "exact_match, containment, token_f1, answer_equivalence" in " ".join(
        capsys.readouterr().err.split()
    )
