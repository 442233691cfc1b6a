"""One trace per ask over the real five processes, and every metric of the catalogue on their pages."""

from __future__ import annotations

import os
import re
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from evenmesh import Addresses, AskResult, Client, MeshError
from evenmesh.types.feedback import Feedback
from evenmesh.types.request import Agent
from evenmesh_mesh import MeshSettings, stop
from evenmesh_mesh.services import SERVICES
from evenmesh_studies import demo
from tests.support.detached_mesh import launch_for_tests
from tests.support.otlp_collector import SOON, Collector, Received
from tests.support.prometheus import reserved_ports

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
NAMES: Final = ("orchestrator", "retriever", "reranker", "generator", "evaluator")
DEMO: Final = "demo"
QUESTION: Final = demo.questions()[0]
STAND_INS: Final = {
    "reranker": "benchmarks.stand_in_reranker",
    "generator": "benchmarks.stand_in_generator",
}
"""The real services around models that answer at once."""


@dataclass(frozen=True)
class Watched:
    """A mesh that tells a collector, its client, and where its pages of metrics are."""

    client: Client
    collector: Collector
    pages: Mapping[str, str]

    def trace_of(self, result: AskResult) -> list[Received]:
        """The spans of an ask, once the last of them has come."""
        assert result.done is not None
        ask_id = result.done.ask_id

        def mine(spans: Sequence[Received]) -> list[Received]:
            traces = {span.trace for span in spans if span.attributes.get("evenmesh.ask.id") == ask_id}
            return [span for span in spans if span.trace in traces]

        def complete(spans: Sequence[Received]) -> bool:
            found = mine(spans)
            names = {(span.service, span.name) for span in found}
            if not {("orchestrator", ASK), ("evaluator", "observe")} <= names:
                return False
            # Each service sends on its own: a span may come before its parent, and every RPC has one below it.
            ids, parents = {span.id for span in found}, {span.parent for span in found if span.parent}
            return (
                parents <= ids and {span.id for span in found if span.name.startswith("evenmesh.")} <= parents
            )

        return mine(self.collector.spans_when(complete))


ASK: Final = "evenmesh.orchestrator.v1.OrchestratorService/Ask"
RETRIEVE: Final = "evenmesh.retriever.v1.RetrieverService/Retrieve"
RERANK: Final = "evenmesh.reranker.v1.RerankerService/Rerank"
JUDGE: Final = "evenmesh.generator.v1.GeneratorService/ScoreRelevance"
GENERATE: Final = "evenmesh.generator.v1.GeneratorService/Generate"
BATCH: Final = "evenmesh.generator.v1.GeneratorService/GenerateBatch"


def _watched(home: Path, settings: MeshSettings, more: Mapping[str, str]) -> Iterator[Watched]:
    with reserved_ports(len(NAMES)) as free, Collector() as collector:
        ports = dict(zip(NAMES, free, strict=True))
        environment = {**SOON, **more}
        for name in NAMES:
            prefix = f"EVENMESH_{name.upper()}"
            environment |= {
                f"{prefix}_OTLP_ENDPOINT": collector.endpoint,
                f"{prefix}_TRACE_SAMPLE_RATIO": "1",
                f"{prefix}_METRICS_PORT": str(ports[name]),
            }
        state = launch_for_tests(replace(settings, environment=environment))
        try:
            with Client(Addresses(**state.addresses), timeout=240) as client:
                client.ingest(demo.passages()[:24], DEMO)
                pages = {name: f"http://127.0.0.1:{port}/metrics" for name, port in ports.items()}
                yield Watched(client, collector, pages)
        finally:
            stop(home)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A mesh with the models that ship; the cross-encoder reads the beginning of each passage."""
    home = tmp_path_factory.mktemp("watched")
    more = {"EVENMESH_RERANKER_MAX_LENGTH": "48"}
    for watched in _watched(home, MeshSettings(home=home, port=0, start_s=600), more):
        watched.client.until_embedded(DEMO)
        yield watched


@pytest.fixture(scope="module")
def talkative(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A mesh whose traces may have text, with models of no cost."""
    home = tmp_path_factory.mktemp("talkative")
    services = tuple(replace(one, module=STAND_INS.get(one.name, one.module)) for one in SERVICES)
    path = os.pathsep.join([str(ROOT), *(one for one in sys.path if one)])
    more = {"EVENMESH_RETRIEVER_ENCODER": "", "PYTHONPATH": path}
    more |= {f"EVENMESH_{name.upper()}_TRACE_TEXT": "true" for name in NAMES}
    yield from _watched(home, MeshSettings(home=home, port=0, start_s=600, services=services), more)


@pytest.fixture(scope="module")
def sampled(real: Watched) -> tuple[AskResult, list[Received]]:
    """An ask for sampled rankings over the retriever's scores, and its trace."""
    result = real.client.answer(
        QUESTION.question,
        collection=DEMO,
        alpha=2.0,
        samples=3,
        seed=7,
        sampling_stage="retriever",
        k=4,
        depth=20,
        rerank_depth=8,
        retriever="dense",
        reranker="rankrag",
        useful=QUESTION.useful_passage_ids,
        references=QUESTION.answers,
        run_id="watched",
    )
    return result, real.trace_of(result)


def test_an_ask_is_one_trace_through_all_services(sampled: tuple[AskResult, list[Received]]) -> None:
    _, spans = sampled
    assert len({span.trace for span in spans}) == 1
    assert {span.service for span in spans} == set(NAMES)
    by_id = {span.id: span for span in spans}
    edges = Counter(
        (by_id[span.parent].name if span.parent in by_id else "", span.service, span.name) for span in spans
    )
    (model,) = {span.name.partition(" ")[2] for span in spans if span.name.startswith("text_completion")}
    once = {
        ("", "orchestrator", ASK),
        (ASK, "orchestrator", "retrieve"),
        ("retrieve", "orchestrator", RETRIEVE),
        (RETRIEVE, "retriever", RETRIEVE),
        (RETRIEVE, "retriever", "search"),
        ("search", "retriever", "encode"),
        ("search", "retriever", "sample"),
        (ASK, "orchestrator", "rerank"),
        ("rerank", "orchestrator", RERANK),
        (RERANK, "reranker", RERANK),
        (RERANK, "reranker", "score"),
        ("score", "reranker", JUDGE),
        (JUDGE, "generator", JUDGE),
        (JUDGE, "generator", f"score_relevance {model}"),
        ("generate", "orchestrator", GENERATE),
        (GENERATE, "generator", GENERATE),
        (GENERATE, "generator", f"text_completion {model}"),
        (ASK, "orchestrator", "observe"),
        ("observe", "evaluator", "observe"),
    }
    assert {edge: count for edge, count in edges.items() if edge in once} == dict.fromkeys(once, 1)
    # The first answer is streamed; other contexts, if rankings differ in them, come in one batch.
    assert edges[ASK, "orchestrator", "generate"] == 1 + edges["generate", "orchestrator", BATCH]
    others = {(ASK, "orchestrator", "generate"), ("generate", "orchestrator", BATCH)}
    others |= {(BATCH, "generator", BATCH), (BATCH, "generator", f"text_completion {model}")}
    assert set(edges) <= once | others


def test_spans_say_what_was_asked_and_which_versions_answered(
    sampled: tuple[AskResult, list[Received]],
) -> None:
    result, spans = sampled
    assert result.retrieved is not None
    assert result.ranked is not None
    named = {(span.service, span.name.partition(" ")[0]): span.attributes for span in spans}
    asked = named["orchestrator", ASK]
    drawn = {
        "evenmesh.sampling.alpha": 2.0,
        "evenmesh.sampling.seed": 7,
        "evenmesh.sampling.rankings": 3,
    }
    expected = {
        "evenmesh.ask.k": 4,
        "evenmesh.ask.depth": 20,
        "evenmesh.ask.rerank_depth": 8,
        "evenmesh.ask.answers": 3,
        "evenmesh.ask.outcome": "ok",
        "gen_ai.data_source.id": DEMO,
        "evenmesh.index.version": result.retrieved.index_version,
        "evenmesh.reranker.model.version": result.ranked.model_version,
        **drawn,
    }
    assert {key: asked.get(key) for key in expected} == expected
    for key in (("orchestrator", "retrieve"), ("retriever", "search"), ("retriever", "sample")):
        assert {name: named[key].get(name) for name in drawn} == drawn, key
    found = named["retriever", "search"]
    assert found["evenmesh.index.version"] == result.retrieved.index_version
    assert found["evenmesh.retrieval.returned"] == len(result.retrieved.passages)
    assert named["orchestrator", "rerank"]["evenmesh.reranker"] == result.ranked.reranker
    written = named["generator", "text_completion"]
    assert written["gen_ai.provider.name"] == "evenmesh"
    assert written["gen_ai.usage.output_tokens"] > 0
    measured = named["evaluator", "observe"]
    assert result.report is not None
    assert measured["evenmesh.fairness.ee_d_norm"] == pytest.approx(result.report.ee_d_norm)


def test_the_evaluators_span_is_linked_to_the_stream_that_brought_it(
    sampled: tuple[AskResult, list[Received]],
) -> None:
    _, spans = sampled
    (observed,) = [span for span in spans if span.service == "evaluator"]
    assert len(observed.links) == 1
    assert observed.links[0] != observed.trace


def test_no_span_has_text_by_default(real: Watched, sampled: tuple[AskResult, list[Received]]) -> None:
    result, _ = sampled
    assert result.retrieved is not None
    everything = "\n".join(span.raw for span in real.collector.spans_when(lambda _: True))
    passage = result.retrieved.passages[0]
    for text in (QUESTION.question, passage.text, passage.id, result.text):
        assert text not in everything


def test_spans_have_text_where_settings_say_so(talkative: Watched) -> None:
    result = talkative.client.answer(QUESTION.question, collection=DEMO, reranker="rankrag")
    assert result.retrieved is not None
    spans = talkative.trace_of(result)
    named = {(span.service, span.name.partition(" ")[0]): span for span in spans}
    asked = named["orchestrator", ASK]
    assert asked.attributes["evenmesh.ask.question"] == QUESTION.question
    assert "answer" in asked.events
    first = result.retrieved.passages[0]
    for key in (("orchestrator", "retrieve"), ("retriever", "search")):
        assert named[key].attributes["gen_ai.retrieval.query.text"] == QUESTION.question
        assert first.id in named[key].attributes["gen_ai.retrieval.documents"]
    for key in (("orchestrator", "generate"), ("generator", "text_completion")):
        assert QUESTION.question in named[key].attributes["gen_ai.input.messages"]
        assert result.text.split()[0] in named[key].attributes["gen_ai.output.messages"]


def test_latencies_lead_to_traces(real: Watched, sampled: tuple[AskResult, list[Received]]) -> None:
    _, spans = sampled
    (trace,) = {span.trace for span in spans}
    assert real.collector.names("orchestrator", "evenmesh.ask.duration", trace)
    assert real.collector.names("evaluator", "evenmesh.evaluator.lag", trace)
    assert real.collector.names("generator", "rpc.server.duration", trace)


@dataclass(frozen=True)
class Listed:
    """A row of the catalogue in docs/operate/telemetry.md."""

    service: str
    name: str
    exposed: str
    at_once: bool


def catalogue() -> list[Listed]:
    """The rows of the catalogue."""
    rows, service = [], ""
    for line in (ROOT / "docs" / "operate" / "telemetry.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("### "):
            service = line.removeprefix("### ")
        row = re.fullmatch(r"\| `([\w.]+)`(\*?)<br>`(\w+)` \| (?:histogram|counter|gauge)\b.*", line)
        if row is not None:
            rows.append(Listed(service, row[1], row[3], not row[2]))
    return rows


def _page(url: str) -> dict[str, set[str]]:
    """The families of a page with the names of their samples' labels."""
    with urllib.request.urlopen(url, timeout=60) as page:  # noqa: S310 - our own server
        text = page.read().decode()
    return {
        family.name + ("_total" if family.type == "counter" else ""): {
            label for sample in family.samples for label in sample.labels
        }
        for family in text_string_to_metric_families(text)
    }


def test_every_metric_of_the_catalogue_is_there_and_no_other(
    real: Watched, sampled: tuple[AskResult, list[Received]]
) -> None:
    client = real.client
    client.answer(QUESTION.question, collection=DEMO, reranker="cross-encoder")
    agent = Agent("task", "model")
    client.record_feedback([Feedback(QUESTION.question, QUESTION.useful_passage_ids[0], 1.0, agent)])
    with pytest.raises(MeshError):
        client.answer(QUESTION.question, collection="there-is-none")
    rows = catalogue()
    wanted = {
        (name, row.exposed)
        for row in rows
        for name in (NAMES if row.service == "every service" else (row.service,))
        if row.at_once
    }
    assert len(wanted) > 70
    wanted.add(("orchestrator", "evenmesh_rpc_errors_total"))  # of the call above, once it is counted
    ends = time.monotonic() + 60
    while True:  # an observation, for one, is counted once it has come
        pages = {name: _page(url) for name, url in real.pages.items()}
        missing = {(name, exposed) for name, exposed in wanted if exposed not in pages[name]}
        if not missing or time.monotonic() > ends:
            break
        time.sleep(0.2)
    assert missing == set()
    known = {row.exposed for row in rows}
    ours = ("evenmesh_", "gen_ai_", "rpc_")
    unknown = {one for page in pages.values() for one in page if one.startswith(ours)} - known
    assert unknown == set()
    for name, page in pages.items():
        assert {"service_name"} <= page["rpc_server_duration_milliseconds"], name
    errors = pages["orchestrator"]["evenmesh_rpc_errors_total"]
    assert {"error_type", "rpc_method", "rpc_grpc_status_code"} <= errors
