"""The gateway before the real mesh, by clients that know nothing of evenmesh."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest

from evenmesh import AskResult, Client, ObservedAsk, Passage
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.wire.errors import NotFound
from evenmesh_studies import demo
from tests.integration.conftest import DEMO
from tests.support import document_files
from tests.support.gateway_process import GatewayProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import openai  # every process of tests collects this file, and one runs it

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(900)]

FOREIGN = Path(__file__).parents[1] / "support" / "foreign_clients"
PYTHON = os.environ.get("EVENMESH_TEST_CLIENTS_PYTHON", "")
"""A Python that has langchain-openai, langchain-cohere and cohere, which would change packages of ours."""
NODE = os.environ.get("EVENMESH_TEST_CLIENTS_NODE", "")
"""A folder whose node_modules have openai and @modelcontextprotocol/sdk."""
DOCUMENTS = ["Seals sleep on the beach.", "Oil the chain every 200 kilometres.", "A chain wears out."]
SAMPLES, ALPHA, SEED = 2, 2.0, 11
EVERY = bool(os.environ.get("EVENMESH_TEST_EVERY_QUESTION"))
"""Whether all sixty questions of the demo are compared and forty of SQuAD, or three of each: `make gateway-questions`."""
SQUAD = Path(os.environ.get("EVENMESH_SHARED_DATA", "")) / "squad-open"


@pytest.fixture
def ai(served: GatewayProcess) -> Iterator[openai.OpenAI]:
    """OpenAI's client of it."""
    import openai

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


def of_demo(client: Client) -> tuple[str, list[str]]:
    """The demo's collection, and questions of it."""
    return DEMO, [one.question for one in demo.questions()[:: 1 if EVERY else 20]]


def of_squad(client: Client) -> tuple[str, list[str]]:
    """A collection of SQuAD's passages that answer its questions and others, and the questions."""
    if not SQUAD.is_dir():
        pytest.skip("squad-open is not among the shared data sets: set EVENMESH_SHARED_DATA")
    questions = lines("questions")[:: 250 if EVERY else 4000][: 40 if EVERY else 3]
    needed = {name for one in questions for name in one["gold_passage_ids"]}
    passages = lines("passages")
    pool = [one for at, one in enumerate(passages) if one["id"] in needed or at % 100 == 0]
    client.ingest(
        [
            Passage(
                id=one["id"],
                title=one["title"],
                text=one["text"],
                attributes={"provider": one["provider"]},
            )
            for one in pool
        ],
        "squad",
    )
    client.until_embedded("squad")
    return "squad", [one["question"] for one in questions]


def lines(name: str) -> list[dict[str, Any]]:
    """The lines of a file of SQuAD."""
    with gzip.open(SQUAD / f"{name}.dev.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.mark.timeout(7200 if EVERY else 900)
@pytest.mark.parametrize("source", [of_demo, of_squad])
def test_every_question_has_the_answer_the_citations_and_the_exposure_of_grpc(
    ai: openai.OpenAI, client: Client, source: Callable[[Client], tuple[str, list[str]]]
) -> None:
    collection, questions = source(client)
    for question in questions:
        asked = client.answer(
            question, alpha=ALPHA, samples=SAMPLES, seed=SEED, collection=collection, observe=False
        )
        done = ai.chat.completions.create(
            model=f"evenmesh/{collection}",
            messages=[{"role": "user", "content": question}],
            seed=SEED,
            extra_body={"evenmesh": sampled()},
        )
        assert done.choices[0].message.content == asked.text
        same(done.evenmesh, asked)  # type: ignore[attr-defined]
    if collection != DEMO:
        client.delete_collection(collection)


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
    import openai

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
    assert lost.value.param == "model"


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


def test_documents_are_uploaded_and_cited_by_document_and_page(http: httpx.Client, client: Client) -> None:
    contents = {
        "zoo/otters.pdf": document_files.pdf([[(11, "Otters hold hands while they sleep.")]]),
        "zoo/notes.md": b"# Seals\n\nSeals sleep on the beach.\n",
        "locked.pdf": document_files.pdf([[(11, "x")]], encrypted=True),
    }
    files = [("file", (name, data)) for name, data in contents.items()]
    path = "/v1/collections/uploaded/documents"
    done = http.post(path, files=files).json()
    assert (done["added"], done["providers"][0]["name"], done["collection"]["embedded"]) == (2, "zoo", 1.0)
    assert done["skipped"] == [{"document": "locked.pdf", "reason": "is encrypted"}]
    again = http.post(path, files=files, headers={"accept": "text/event-stream"}).text
    assert '"unchanged": 2' in again.split("event: end\n")[1]
    found = client.retrieve("What do otters hold?", collection="uploaded", k=1).passages[0]
    assert (found.attributes["document"], found.attributes["page"]) == ("zoo/otters.pdf", "1")
    assert (
        http.post(path.replace("uploaded", "missing"), files=files, params={"create": "false"}).status_code
        == 404
    )
    client.delete_collection("uploaded")


def test_embeddings_are_those_by_which_passages_are_found(ai: openai.OpenAI, client: Client) -> None:
    import openai

    """The order of ``dense`` is that of the inner products of the vectors that the gateway gives."""
    question = "How often is a chain oiled?"
    made = ai.embeddings.create(model="all-MiniLM-L6-v2", input=DOCUMENTS)
    asked = ai.embeddings.create(model="evenmesh", input=question, extra_body={"input_type": "query"})
    vectors, query = np.array([one.embedding for one in made.data]), np.array(asked.data[0].embedding)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1.0, abs=1e-5)
    found = client.retrieve(
        question,
        passages=[Passage(id=str(at), text=text) for at, text in enumerate(DOCUMENTS)],
        retriever="dense",
    )
    by_id = {one.id: score for one, score in zip(found.passages, found.scores, strict=True)}
    assert (vectors @ query).tolist() == pytest.approx([by_id[str(at)] for at in range(3)], abs=1e-5)
    # By the SDK too, and the same alone as in company, to what batches may change of it.
    own = client.embed([DOCUMENTS[1]])
    assert own.vectors[0] == pytest.approx(vectors[1], abs=1e-2)
    assert (own.model, len(own.fingerprint) > 0) == (made.model, True)
    assert made.usage.prompt_tokens > own.tokens[0] > 3
    with pytest.raises(openai.NotFoundError):
        ai.embeddings.create(model="text-embedding-3-small", input="a")
    with pytest.raises(openai.BadRequestError, match="must be that of 'all-MiniLM-L6-v2', 384, got 8"):
        ai.embeddings.create(model="evenmesh", input="a", dimensions=8)


def run(command: list[str], served: GatewayProcess, **options: Any) -> dict[str, Any]:
    """What a client of another project finds."""
    words = [*command, served.url, demo.questions()[0].question, *DOCUMENTS]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, env=environment, **options)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_langchain_and_coheres_client_work_unchanged(
    served: GatewayProcess, ai: openai.OpenAI, client: Client
) -> None:
    if not PYTHON:
        pytest.skip("EVENMESH_TEST_CLIENTS_PYTHON names no Python with langchain-openai and langchain-cohere")
    found = run([PYTHON, str(FOREIGN / "langchain_and_cohere.py")], served)
    asked = client.answer(demo.questions()[0].question, collection=DEMO, observe=False)
    assert found["answer"] == found["streamed"] == asked.text
    vectors = [one.embedding for one in ai.embeddings.create(model="evenmesh", input=DOCUMENTS).data]
    assert np.array(found["vectors"]) == pytest.approx(np.array(vectors), abs=1e-5)
    assert len(found["query"]) == len(vectors[0])
    assert found["langchain_order"] == found["cohere_order"]
    assert found["cohere_order"][0] == 1


def test_openais_client_for_node_and_mcps_sdk_work_unchanged(
    served: GatewayProcess, ai: openai.OpenAI, client: Client
) -> None:
    node = shutil.which("node")
    if not NODE or node is None:
        pytest.skip("EVENMESH_TEST_CLIENTS_NODE names no folder with openai and @modelcontextprotocol/sdk")
    found = run([node, str(FOREIGN / "openai_and_mcp.mjs")], served, cwd=NODE)
    asked = client.answer(demo.questions()[0].question, collection=DEMO, observe=False)
    assert found["answer"] == found["streamed"] == asked.text
    assert f"evenmesh/{DEMO}" in found["models"]
    vectors = [one.embedding for one in ai.embeddings.create(model="evenmesh", input=DOCUMENTS).data]
    assert np.array(found["vectors"]) == pytest.approx(np.array(vectors), abs=1e-5)
    assert found["refused"] == [True, 404, "collection"]
    assert {"ask", "retrieve", "report", "give_feedback"} <= set(found["tools"])
    assert asked.text in json.dumps(found["asked"])


def delivered(client: Client, ask_id: str) -> ObservedAsk:
    """What an ask showed, once the evaluator has it."""
    found: list[ObservedAsk] = []

    def arrived() -> bool:
        with suppress(NotFound):
            found.append(client.observation(ask_id))
        return bool(found)

    wait_until(arrived, why="the evaluator got no observation")
    return found[0]


async def test_an_agent_retrieves_what_an_ask_of_it_shows(served: GatewayProcess, client: Client) -> None:
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    question = demo.questions()[0].question
    asked = client.answer(question, collection=DEMO, num_answers=0, observe=False)
    assert asked.retrieved is not None
    assert asked.ranked is not None
    places = asked.ranked.contexts[0]
    provider = asked.retrieved.passages[places[0]].attributes["provider"]
    conditions = [{"attribute": "provider", "any_of": {"values": [provider]}}]
    async with (
        streamable_http_client(f"{served.url}/mcp") as (read, write, *_),
        ClientSession(read, write, read_timeout_seconds=240) as session,
    ):
        await session.initialize()

        async def found(**arguments: Any) -> Any:
            result = await session.call_tool("retrieve", {"query": question, "collection": DEMO, **arguments})
            assert not result.is_error, result.content
            return json.loads(result.content[0].text)  # type: ignore[union-attr]

        whole = await found(task="qa", model="mine")
        (filtered,) = (await found(filter={"conditions": conditions}, k=1))["rankings"]
    assert whole["rankings"] == [[asked.retrieved.passages[place].id for place in places]]
    assert whole["degradations"] == []
    observed = delivered(client, whole["ask_id"])
    assert (observed.question, observed.run_id, observed.answers) == (question, whole["run_id"], ())
    assert filtered == [asked.retrieved.passages[places[0]].id]


async def test_an_agent_learns_what_became_of_its_feedback(served: GatewayProcess) -> None:
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    async with (
        streamable_http_client(f"{served.url}/mcp") as (read, write, *_),
        ClientSession(read, write, read_timeout_seconds=240) as session,
    ):
        await session.initialize()

        async def given(**arguments: Any) -> Any:
            item = {"query": "oil", "passage_id": "p", "usefulness": 0.25, "collection": DEMO, **arguments}
            result = await session.call_tool("give_feedback", item)
            said = result.content[0].text  # type: ignore[union-attr]
            return said if result.is_error else json.loads(said)

        agent = {"task": "outcomes", "model": "of-feedback"}
        first, again = await given(**agent), await given(**agent)
        assert first == {"id": first["id"], "duplicate": False, "flagged": False}
        assert again == {**first, "duplicate": True}
        contrary = await given(usefulness=1.0, **agent)
        assert (contrary["duplicate"], contrary["flagged"]) == (False, True)
        assert "INVALID_FIELD: agent: must have a task or a model" in await given()
