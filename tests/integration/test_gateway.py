"""The gateway before the real mesh, by clients that know nothing of evenmesh."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import httpx
import openai
import pytest

from evenmesh import AskResult, Client
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh_studies import demo
from tests.integration.conftest import DEMO, RunningMesh
from tests.support.gateway_process import GatewayProcess

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(900)]

SAMPLES, ALPHA, SEED = 4, 2.0, 11
QUESTIONS = demo.questions()[:: 1 if os.environ.get("EVENMESH_TEST_EVERY_QUESTION") else 6]
"""Every sixth, or all sixty of them."""


@pytest.fixture(scope="module")
def served(mesh: RunningMesh, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway of this module before the mesh of the session."""
    with GatewayProcess(tmp_path_factory.mktemp("gateway"), mesh.addresses) as served:
        yield served


@pytest.fixture
def ai(served: GatewayProcess) -> Iterator[openai.OpenAI]:
    """OpenAI's client of it."""
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", timeout=240) as client:
        yield client


@pytest.fixture
def http(served: GatewayProcess) -> Iterator[httpx.Client]:
    """A plain client of it."""
    with httpx.Client(base_url=served.url, timeout=240) as client:
        yield client


def sampled() -> dict[str, object]:
    """How the questions are asked in both ways."""
    return {"sampling": {"alpha": ALPHA, "numRankings": SAMPLES}, "skipObservation": True}


def same(found: dict[str, object], asked: AskResult) -> None:
    """Check that an extension says what gRPC said: answers, citations and exposure."""
    report, retrieved = asked.report, asked.retrieved
    assert report is not None
    assert retrieved is not None
    answers = [
        (
            one["answer"]["text"],
            tuple(one.get("samples", ())),
            [(cited["passage_id"], cited["rank"]) for cited in one.get("citations", ())],
        )
        for one in found["answers"]  # type: ignore[attr-defined]
    ]
    assert sorted(answers) == sorted(
        (one.text, one.samples, [(cited.passage_id, cited.rank) for cited in one.citations])
        for one in asked.answers
    )
    shown = [(one["passage_id"], one["exposure"]) for one in found["shown"]]  # type: ignore[attr-defined]
    assert shown == [
        (passage.id, value)
        for passage, value in zip(retrieved.passages, report.exposure, strict=True)
        if value > 0
    ]
    assert found["report"]["ee_d_norm"] == report.ee_d_norm  # type: ignore[index]
    providers = [(one["name"], one["exposure"]) for one in found["providers"]]  # type: ignore[attr-defined]
    assert providers == [(one.name, one.exposure) for one in report.providers]


def test_every_question_has_the_answer_the_citations_and_the_exposure_of_grpc(
    ai: openai.OpenAI, client: Client
) -> None:
    for question in QUESTIONS:
        asked = client.answer(
            question.question, alpha=ALPHA, samples=SAMPLES, seed=SEED, collection=DEMO, observe=False
        )
        done = ai.chat.completions.create(
            model=f"evenmesh/{DEMO}",
            messages=[{"role": "user", "content": question.question}],
            seed=SEED,
            extra_body={"evenmesh": sampled()},
        )
        assert done.choices[0].message.content == asked.text
        same(done.evenmesh, asked)  # type: ignore[attr-defined]


def test_streams_of_both_apis_say_what_the_whole_says(ai: openai.OpenAI) -> None:
    question = demo.questions()[0].question
    body = {"evenmesh": sampled()}
    whole = ai.chat.completions.create(
        model="evenmesh", messages=[{"role": "user", "content": question}], seed=SEED, extra_body=body
    )
    text = whole.choices[0].message.content
    chunks = ai.chat.completions.create(
        model="evenmesh",
        messages=[{"role": "user", "content": question}],
        seed=SEED,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=body,
    )
    said, usage = "", None
    for chunk in chunks:
        said += "".join(choice.delta.content or "" for choice in chunk.choices)
        usage = chunk.usage or usage
    assert said == text
    assert usage is not None
    assert whole.usage is not None
    assert usage.total_tokens == whole.usage.total_tokens > 0
    response = ai.responses.create(model="evenmesh", input=question, extra_body={**body, "seed": SEED})
    assert response.output_text == text
    with ai.responses.stream(model="evenmesh", input=question, extra_body={**body, "seed": SEED}) as stream:
        assert stream.get_final_response().output_text == text


def test_a_chat_goes_on(ai: openai.OpenAI, client: Client) -> None:
    first, second = "How often should I oil my chain?", "And how do I clean it?"
    said = ai.chat.completions.create(model="evenmesh", messages=[{"role": "user", "content": first}])
    answer = said.choices[0].message.content or ""
    done = ai.chat.completions.create(
        model="evenmesh",
        messages=[
            {"role": "user", "content": first},
            {"role": "assistant", "content": answer},
            {"role": "user", "content": second},
        ],
        extra_body={"evenmesh": {"skipObservation": True}},
    )
    asked = client.answer(second, turns=[(first, answer)], observe=False)
    assert done.choices[0].message.content == asked.text
    same(done.evenmesh, asked)  # type: ignore[attr-defined]


def test_pipelines_are_listed_and_each_can_be_asked(ai: openai.OpenAI) -> None:
    names = [one.id for one in ai.models.list()]
    assert {"evenmesh", f"evenmesh/{DEMO}"} < set(names)
    chosen = next(one for one in names if one.startswith(f"evenmesh/{DEMO}/bm25-lucene/none/"))
    assert ai.models.retrieve(chosen).id == chosen
    done = ai.chat.completions.create(model=chosen, messages=[{"role": "user", "content": "How often?"}])
    assert (done.evenmesh["retriever"], done.evenmesh["reranker"]) == ("bm25-lucene", "none")  # type: ignore[attr-defined]
    with pytest.raises(openai.NotFoundError):
        ai.models.retrieve("evenmesh/nothing")
    with pytest.raises(openai.NotFoundError) as lost:
        ai.chat.completions.create(
            model="evenmesh/nothing", messages=[{"role": "user", "content": "How often?"}]
        )
    assert lost.value.param == "collection"


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_documents_are_ranked_as_by_grpc(http: httpx.Client, path: str) -> None:
    documents = [
        "Seals sleep on the beach.",
        "Oil the chain every 200 kilometres.",
        {"text": "A chain is oiled with a drop for each link.", "title": "Oil"},
    ]
    question = "How often is a chain oiled?"
    body = {"model": "cross-encoder", "query": question, "documents": documents, "top_n": 2}
    found = http.post(path, json={**body, "return_documents": True}).json()
    passages = [
        {"id": str(at), **(one if isinstance(one, dict) else {"text": one})}
        for at, one in enumerate(documents)
    ]
    reply = http.post(
        "/v1/evenmesh.reranker.v1.RerankerService/Rerank",
        json={"query": question, "passages": passages, "topK": 2, "reranker": "cross-encoder"},
    ).json()
    assert [one["index"] for one in found["results"]] == reply["order"]
    assert [one["relevance_score"] for one in found["results"]] == [
        reply["scores"][at] for at in reply["order"]
    ]
    assert found["results"][0]["document"]["text"] in (documents[1], documents[2]["text"])  # type: ignore[index]


def test_events_of_rest_are_those_of_grpc(http: httpx.Client, client: Client) -> None:
    question = demo.questions()[1].question
    body = {"question": question, **sampled()}
    body["sampling"] = {"alpha": ALPHA, "numRankings": SAMPLES, "seed": str(SEED)}
    text = http.post("/v1/evenmesh.orchestrator.v1.OrchestratorService/Ask", json=body).text
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    kinds = [next(iter(json.loads(line)), "") for line in lines]
    assert kinds[0] == "retrieved"
    assert kinds[-2:] == ["done", ""]
    report = next(json.loads(line)["report"] for line in lines if line.startswith('{"report"'))
    asked = client.answer(question, alpha=ALPHA, samples=SAMPLES, seed=SEED, observe=False)
    assert asked.report is not None
    assert report["eeDNorm"] == asked.report.ee_d_norm
    assert {one.name for one in pb.AskResponse.DESCRIPTOR.fields} >= {kind for kind in kinds if kind}


def test_a_collection_is_filled_and_removed_over_http(http: httpx.Client) -> None:
    service = "/v1/evenmesh.retriever.v1.CollectionService"
    lines = [
        {"collection": "over-http", "createIfMissing": True, "passages": [{"id": "p", "text": "Otters."}]},
        {"last": True},
    ]
    filled = http.post(
        f"{service}/Ingest",
        content="\n".join(map(json.dumps, lines)),
        headers={"content-type": "application/x-ndjson"},
    )
    assert filled.json()["added"] == "1", filled.text
    assert http.post(f"{service}/DeleteCollection", json={"name": "over-http"}).json() == {}
    gone = http.post(f"{service}/GetCollection", json={"name": "over-http"})
    assert (gone.status_code, gone.json()["field"]) == (404, "name")
