"""Audits of the console in Chromium, before real services: a generator of two models, and the rest of the mesh."""

from __future__ import annotations

import csv
import html
import json
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from evenmesh import AuditReport, AuditSample, AuditSettled, Client
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh_lab.files import read_audits
from evenmesh_studies import demo
from tests.integration.conftest import DEMO, RunningMesh
from tests.support import tiny_models
from tests.support.console_page import WIDE, ConsolePage, chromium
from tests.support.gateway_process import GatewayProcess
from tests.support.killable import Killable, serving

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(900)]

SETTINGS: dict[str, Any] = {"collection": DEMO, "k": 5, "depth": 20}
"""How an audit asks unless it is changed."""
ASKED = ("bike-q05", "bike-q06")
RETRIEVERS = ("bm25-lucene", "dense")
MODELS = ("evenmesh-pointer", "t5")
SAMPLES = 2


class Audited:
    """A console and a client of the same mesh."""

    def __init__(self, console: ConsolePage, client: Client) -> None:
        self.console = console
        self.client = client


@pytest.fixture(scope="module")
def audited(mesh: RunningMesh, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    """The console before a mesh of two models; at the end nothing has left the origin or been complained of."""
    home = tmp_path_factory.mktemp("audits")
    (home / "t5").mkdir()
    folder = tiny_models.t5(home / "t5")
    generator = Killable(
        "evenmesh_generator",
        "generator",
        home,
        MODELS=f"t5={folder}",
        DTYPE="float32",
        DEFAULT_MODEL=MODELS[0],
    )
    others = {
        f"{name.upper()}_TARGET": getattr(mesh.addresses, name)
        for name in ("retriever", "reranker", "evaluator")
    }
    orchestrator = Killable(
        "evenmesh_orchestrator", "orchestrator", home, GENERATOR_TARGET=generator.address, **others
    )
    addresses = replace(mesh.addresses, orchestrator=orchestrator.address, generator=generator.address)
    with serving(generator, orchestrator), ExitStack() as stack:
        served = stack.enter_context(GatewayProcess(home, addresses))
        client = stack.enter_context(Client(addresses, timeout=240))
        browser = stack.enter_context(chromium())
        console = ConsolePage(browser.new_page(viewport=WIDE), served.url)
        yield Audited(console, client)
        assert console.strangers == []
        assert console.complaints == []


def questions() -> Sequence[demo.Question]:
    """Two questions of the demo."""
    return [one for one in demo.questions() if one.id in ASKED]


def test_an_audit_is_asked_stopped_and_goes_on_after_the_tab_was_closed(
    audited: Audited, tmp_path: Path
) -> None:
    console, client, samples = audited.console, audited.client, SAMPLES
    page, asked = console.page, questions()
    lines = [
        json.dumps({"query_id": one.id, "question": one.question, "references": list(one.answers)})
        for one in asked
    ]
    judged = [f"{one.id} 0 {passage} 1" for one in asked for passage in one.useful_passage_ids]
    console.open("audits")
    page.get_by_label("Questions", exact=True).fill("\n".join((*lines, lines[0])))
    page.get_by_text("repeats the id").wait_for()
    page.get_by_label("Questions", exact=True).fill("\n".join(lines))
    page.get_by_text("Labels: which passages are useful").press("Enter")
    page.get_by_label("Labels", exact=True).fill("\n".join(judged))
    page.get_by_text("2 questions, 2 with right answers, 2 with labels").wait_for()
    page.get_by_label("Name").fill("Two of the demo")
    page.get_by_label("Dials").fill("1, 8")
    page.get_by_label("Rankings of each dial").fill(str(samples))
    page.get_by_text(f"{2 * (1 + 2 * samples + samples)} rankings.").wait_for()

    reports, answers = {}, []
    for one in asked:
        events = list(
            client.audit(
                one.question,
                alphas=[1.0, 8.0],
                samples=samples,
                useful=list(one.useful_passage_ids),
                references=list(one.answers),
                observe=False,
                **SETTINGS,
            )
        )
        reports[one.id] = [event for event in events if isinstance(event, AuditReport)]
        answers.append(next(event.num_contexts for event in events if isinstance(event, AuditSettled)))

    # The cost comes first; it is what the rankings of the first questions show, and the oracle's.
    page.get_by_label("Collection").select_option(DEMO)
    page.get_by_role("button", name="See what it costs").press("Enter")
    page.locator("[data-expected]").wait_for()
    expected = int(page.locator("[data-expected]").get_attribute("data-expected") or 0)
    assert sum(answers) <= expected <= 2 * (1 + 3 * samples)
    assert console.violations() == []
    page.get_by_label("Budget").fill(str(answers[0]))
    page.get_by_role("button", name="Begin").press("Enter")
    page.locator("[data-audit=budget]").wait_for()
    assert page.locator("[data-done]").get_attribute("data-done") == "1"
    assert f"needs {answers[1]} answers" in page.locator(".problem").inner_text()
    # Both curves are there, and grow: one question has no interval, two have.
    assert page.locator(".tradeoff circle").count() == 2 * 3
    assert page.locator(".tradeoff .error").count() == 0

    # It is there again after a reload, is stopped while it asks, and goes on.
    page.reload()
    page.locator("[data-audit=budget] [data-done='1']").wait_for()
    page.get_by_label("Budget").fill(str(sum(answers)))
    page.route("**/*OrchestratorService/Audit", lambda _: None)
    page.get_by_role("button", name="Go on").press("Enter")
    page.get_by_role("button", name="Stop", exact=True).press("Enter")
    page.locator("[data-audit=stopped]").wait_for()
    page.unroute("**/*OrchestratorService/Audit")
    page.get_by_role("button", name="Go on").press("Enter")
    page.locator("[data-audit=done]").wait_for()
    page.locator("[data-slope=relevance]").wait_for()
    assert page.locator(".tradeoff circle").count() == 2 * 3
    assert page.locator(".tradeoff .error").count() > 0

    for dial, alpha in (("1", 1.0), ("8", 8.0), ("none", None)):
        of_dial = [
            next(one for one in found if one.alpha == alpha and one.policy != "oracle")
            for found in reports.values()
        ]
        wanted = {
            "disparity": [one.exact_ee_d_norm if alpha else one.ee_d_norm for one in of_dial],
            "relevance": [one.exact_ee_r_norm if alpha else one.ee_r_norm for one in of_dial],
            "utility": [one.expected_utility for one in of_dial],
        }
        for quantity, values in wanted.items():
            cell = page.locator(f"[data-dial='{dial}'] [data-quantity={quantity}]")
            assert float(cell.get_attribute("data-mean") or "nan") == pytest.approx(
                sum(value or 0.0 for value in values) / 2
            )
    assert console.is_readable()

    saved = {}
    for name, label in (("csv", "CSV"), ("html", "Report"), ("jsonl", "Rankings (JSON lines)")):
        with page.expect_download() as download:
            page.get_by_role("button", name=label).press("Enter")
        saved[name] = tmp_path / f"saved.{name}"
        download.value.save_as(saved[name])
    assert len(saved["csv"].read_text(encoding="utf-8").splitlines()) == 1 + 2 * 3
    read = list(read_audits([saved["jsonl"]]))
    assert [one.query_id for one in read] == [one.id for one in asked]
    assert sum(len(one.rankings) for query in read for one in query.samplings) == 2 * (1 + 3 * samples)
    report = saved["html"].read_text(encoding="utf-8")
    assert report.count("<svg") == 2
    assert "<script" not in report
    assert not re.search(r"""(?:src|href)=|url\(|@import""", report)

    # Its asks are among the runs: one observation for each question and way of ranking, the oracle's too.
    page.get_by_role("link", name="Its asks").press("Enter")
    page.get_by_text("8 asks").first.wait_for()
    console.open("audits")
    page.get_by_role("button", name="Delete…").press("Enter")
    page.get_by_role("button", name="Delete it").press("Enter")
    page.locator(".audit-form").wait_for()


def test_answers_of_a_try_that_failed_are_part_of_the_budget(audited: Audited) -> None:
    """The first try has three answers when its call breaks off, which is all that the budget has."""
    page, one = audited.console.page, questions()[0]
    audited.console.open("audits")
    page.get_by_label("Questions", exact=True).fill(f"{one.question}\t{one.answers[0]}")
    page.get_by_label("Collection").select_option(DEMO)
    page.get_by_label("Dials").fill("1")
    page.get_by_label("Rankings of each dial").fill(str(SAMPLES))
    page.get_by_role("button", name="See what it costs").press("Enter")
    page.get_by_label("Budget").fill("3")
    settled = pb.AuditResponse(settled=pb.AuditSettled(num_contexts=3))
    samples = [
        pb.AuditResponse(
            sample=pb.AuditSample(
                policy=pb.AUDIT_POLICY_SAMPLED, sample=at, passage_ids=[f"p{at}"], answered=True
            )
        )
        for at in range(3)
    ]
    sent = [(0, message.SerializeToString()) for message in (settled, *samples)]
    sent.append((2, b'{"error": {"code": "unavailable", "message": "gone"}}'))
    page.route(
        "**/*OrchestratorService/Audit",
        lambda route: route.fulfill(
            content_type="application/connect+proto",
            body=b"".join(struct.pack(">BI", kind, len(part)) + part for kind, part in sent),
        ),
        times=1,
    )
    page.get_by_role("button", name="Begin").press("Enter")
    page.locator("[data-audit=budget]").wait_for()
    assert page.locator("[data-done]").get_attribute("data-done") == "0"
    page.get_by_role("button", name="Delete…").press("Enter")
    page.get_by_role("button", name="Delete it").press("Enter")
    page.locator(".audit-form").wait_for()


def test_an_audit_of_several_retrievers_and_models_compares_them(audited: Audited, tmp_path: Path) -> None:
    console, client = audited.console, audited.client
    page, asked = console.page, questions()
    pairs = list(product(MODELS, RETRIEVERS))
    console.open("audits")
    lines = [
        json.dumps(
            {
                "query_id": one.id,
                "question": one.question,
                "references": list(one.answers),
                "useful": list(one.useful_passage_ids),
            }
        )
        for one in asked
    ]
    page.get_by_label("Questions", exact=True).fill("\n".join(lines))
    page.get_by_label("Dials").fill("1, 8")
    page.get_by_label("Rankings of each dial").fill(str(SAMPLES))
    page.get_by_text("How it is answered and scored").press("Enter")
    for name in (*RETRIEVERS, *MODELS):
        page.get_by_label(name, exact=True).press("Space")
    rankings = len(pairs) * 2 * (1 + 2 * SAMPLES + SAMPLES)
    page.get_by_text(
        f"2 questions, 4 pairs of a retriever and a model, 2 dials of at most 16, {SAMPLES} rankings each: {rankings} rankings."
    ).wait_for()
    page.get_by_role("button", name="See what it costs").press("Enter")
    page.get_by_label("Budget").fill(str(rankings))
    assert console.is_readable()
    page.get_by_role("button", name="Begin").press("Enter")
    page.locator("[data-audit=done]").wait_for()
    page.locator("[data-slope=relevance]").nth(len(pairs) - 1).wait_for()
    assert page.locator("[data-done]").get_attribute("data-done") == "2"
    assert page.locator("[data-curve]").count() == 2 * len(pairs)

    # Each curve is that of its retriever and model; utility is over the best ranking of any retriever.
    events = {
        (model, retriever, one.id): list(
            client.audit(
                one.question,
                alphas=[1.0, 8.0],
                samples=SAMPLES,
                useful=list(one.useful_passage_ids),
                references=list(one.answers),
                retriever=retriever,
                model=model,
                observe=False,
                **SETTINGS,
            )
        )
        for model, retriever in pairs
        for one in asked
    }
    best = {
        (model, one.id): max(
            event.utility or 0.0
            for retriever in RETRIEVERS
            for event in events[model, retriever, one.id]
            if isinstance(event, AuditSample)
        )
        for model in MODELS
        for one in asked
    }
    assert all(best[MODELS[0], one.id] > 0 for one in asked)
    for system, (model, retriever) in enumerate(pairs):
        for dial, alpha in (("1", 1.0), ("8", 8.0), ("none", None)):
            found = {
                one.id: next(
                    event
                    for event in events[model, retriever, one.id]
                    if isinstance(event, AuditReport) and event.alpha == alpha and event.policy != "oracle"
                )
                for one in asked
            }
            wanted: dict[str, list[float | None]] = {
                "disparity": [one.exact_ee_d_norm if alpha else one.ee_d_norm for one in found.values()],
                "normalized": [
                    (one.expected_utility or 0.0) / best[model, query]
                    for query, one in found.items()
                    if best[model, query]
                ],
            }
            row = page.locator(f"[data-system='{system}'][data-dial='{dial}']")
            assert retriever in row.inner_text()
            assert model in row.inner_text()
            for quantity, values in wanted.items():
                cell = row.locator(f"[data-quantity={quantity}]")
                if len(values) == len(asked):
                    mean = sum(value or 0.0 for value in values) / len(values)
                    assert float(cell.get_attribute("data-mean") or "nan") == pytest.approx(mean)
    assert console.is_readable()

    # A file for each model, as `evenmesh audit` has them, and one of everything.
    for model in MODELS:
        with page.expect_download() as download:
            page.get_by_role("button", name=f"Rankings of {model} (JSON lines)").press("Enter")
        file = tmp_path / f"{model}.jsonl"
        download.value.save_as(file)
        read = list(read_audits([file]))
        assert [one.query_id for one in read] == list(ASKED)
        systems = {system.system for one in read for system in one.samplings}
        assert {name.split("+")[0].split("/")[0] for name in systems} == set(RETRIEVERS)
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").press("Enter")
    rows = list(csv.DictReader(Path(download.value.path()).read_text(encoding="utf-8").splitlines()))
    assert len(rows) == len(pairs) * len(asked) * 3
    assert {(row["model"], row["retriever"]) for row in rows} == set(pairs)
    with page.expect_download() as download:
        page.get_by_role("button", name="Report").press("Enter")
    report = Path(download.value.path()).read_text(encoding="utf-8")
    for model, retriever in pairs:
        assert html.escape(f"{retriever} · {model}") in report

    # The asks of each are a run of their own.
    page.get_by_role("link", name="Asks of dense · t5, among the runs").press("Enter")
    page.get_by_text("8 asks").first.wait_for()
    page.locator(".asks .link").first.press("Enter")
    page.locator("dialog[open]").get_by_text("dense").first.wait_for()
    page.keyboard.press("Escape")
