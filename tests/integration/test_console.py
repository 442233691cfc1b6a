"""The console in Chromium before the real mesh."""

from __future__ import annotations

import html
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import psutil
import pytest

from evenmesh import Agent, AuditReport, AuditSample, Client, Feedback, GroupTarget, Passage
from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb
from evenmesh.evaluator.v1.evaluator_service_pb2_grpc import EvaluatorServiceStub
from evenmesh_core.text_metrics import token_f1
from evenmesh_kit.security.caller import DEFAULT_TENANT, Role
from evenmesh_kit.security.keys import KeyEntry, add_entry, new_key
from evenmesh_reranker.models.store import ModelStore
from tests.integration.conftest import DEMO, PASSAGES, RunningMesh
from tests.integration.test_mesh import eventually
from tests.support import document_files, evaluator_process, tiny_encoders, tiny_models
from tests.support.console_page import NARROW, PAGES, TALL, Colours, ConsolePage, chromium
from tests.support.gateway_process import GatewayProcess
from tests.support.killable import Killable, serving

if TYPE_CHECKING:
    from playwright.sync_api import Route

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(900)]

QUESTION = "How often should I oil my chain?"
SETTINGS: dict[str, Any] = {"collection": DEMO, "k": 5, "depth": 20, "samples": 40}
"""How the page asks unless it is changed."""
ALPHA = 2.0
EVEN, BY_SCORE = 0, 9
ALPHAS = {EVEN: 0.0, BY_SCORE: 8.0}
MEMBERS = ("Lexical@1", "Dense@1", "Lexical@RR@2", "Lexical@4")


@pytest.fixture(scope="module")
def console(served: GatewayProcess) -> Iterator[ConsolePage]:
    """The console, which has asked a question; at the end nothing has left the origin or been complained of."""
    with chromium() as browser:
        console = ConsolePage(browser.new_page(viewport={"width": 1280, "height": 900}), served.url)
        console.open("ask")
        console.ask(QUESTION)
        yield console
        assert console.strangers == []
        assert console.complaints == []


@pytest.fixture
def asked(console: ConsolePage) -> ConsolePage:
    """The console after an ask at the default setting."""
    console.page.emulate_media(color_scheme="light")
    console.open("ask")
    console.page.reload()
    console.ask(QUESTION)
    return console


def test_the_shares_on_the_page_are_those_of_the_ask(asked: ConsolePage, client: Client) -> None:
    seed = int(asked.page.locator("[data-seed]").get_attribute("data-seed") or -1)
    assert f"with the seed {seed}" in asked.page.locator(".shown").inner_text()
    found = client.answer(QUESTION, alpha=ALPHA, seed=seed, num_answers=1, observe=False, **SETTINGS)
    assert found.report is not None
    shown = {name: share for name, share in asked.shares(".shown").items() if share}
    assert shown == {one.name: one.share for one in found.report.providers}
    disparity = asked.page.locator("[data-disparity]").get_attribute("data-disparity")
    assert float(disparity or "nan") == found.report.ee_d_norm
    assert asked.page.locator(".said").inner_text() == found.text


def test_the_dial_shows_other_shares_before_anything_is_generated(asked: ConsolePage, client: Client) -> None:
    seen = {}
    for stop, alpha in ALPHAS.items():
        asked.turn(stop)
        seen[stop] = asked.shares(".dial")
        found = client.answer(QUESTION, alpha=alpha, seed=0, num_answers=0, observe=False, **SETTINGS)
        assert found.report is not None
        assert {k: v for k, v in seen[stop].items() if v} == {
            one.name: one.share for one in found.report.providers
        }
    assert seen[EVEN] != seen[BY_SCORE]
    assert asked.page.locator(".result").count() == 1


def test_moving_the_dial_redraws_the_sampled_rankings_at_once(asked: ConsolePage, client: Client) -> None:
    page, alpha, samples = asked.page, 0.5, 40
    page.locator("circle.sampled").first.wait_for()
    page.get_by_text("drawing rankings").wait_for(state="detached")
    page.get_by_text("Where the time went").wait_for()
    sent: list[str] = []
    page.on("request", lambda one: sent.append(one.url))
    asked.turn(1)
    page.locator("output", has_text=f"α = {alpha}").wait_for()
    events = list(
        client.audit(
            QUESTION,
            alphas=[alpha],
            oracle=0,
            num_answers=0,
            useful=[],
            observe=False,
            **SETTINGS,
        )
    )
    drawn = [one for one in events if isinstance(one, AuditSample) and one.alpha == alpha]
    titles = {one.id: one.title for one in PASSAGES}
    rankings = [[titles[passage] for passage in one.passage_ids] for one in drawn]
    assert len({tuple(one) for one in rankings}) > samples // 2
    slider = page.locator(".picker input")
    for place in (0, 1, samples - 1):
        slider.fill(str(place))
        page.get_by_text(f"Sample {place + 1} of {samples}").wait_for()
        page.wait_for_function(
            "wanted => JSON.stringify([...document.querySelectorAll('ol.ranking .link')]"
            ".map(one => one.innerText)) === JSON.stringify(wanted)",
            arg=rankings[place],
        )
        column = page.locator(".column.chosen .cell").evaluate_all("all => all.map(one => one.title)")
        assert column == rankings[place]
    (report,) = [one for one in events if isinstance(one, AuditReport) and one.alpha == alpha]
    exact, shown = (
        page.locator("circle.sampled").evaluate_all(f"all => all.map(one => Number(one.dataset.{what}))")
        for what in ("exact", "shown")
    )
    assert exact == pytest.approx(list(report.exact_exposure), abs=1e-9)
    pool = page.locator("circle.sampled title").evaluate_all("all => all.map(one => one.textContent)")
    often = Counter(title for ranking in rankings for title in ranking)
    assert shown == pytest.approx([often[title.rsplit(": ", 1)[0]] / samples for title in pool], abs=1e-9)
    # The samples are played one after another, without another call.
    slider.fill("0")
    page.get_by_role("button", name="Play samples").click()
    page.get_by_text(f"Sample 3 of {samples}").wait_for()
    page.get_by_role("button", name="Pause").click()
    assert sent == []


def test_two_settings_stand_side_by_side(asked: ConsolePage) -> None:
    asked.turn(BY_SCORE)
    asked.page.get_by_label("beside the answer above").check()
    asked.page.get_by_role("button", name="Answer with this").click()
    asked.page.locator("[data-disparity]").nth(1).wait_for()
    first, second = asked.page.locator("[data-disparity]").evaluate_all(
        "all => all.map(one => Number(one.dataset.disparity))"
    )
    assert first < second


def test_marked_passages_give_relevance_and_a_target(asked: ConsolePage, client: Client) -> None:
    aunt = "Ask Aunt Sprocket"
    pool = client.retrieve(QUESTION, collection=DEMO, depth=20, k=20).passages
    of_aunt = sum(one.attributes["provider"] == aunt for one in pool)
    # The useful passage has one of five places for certain; the other 19 share four places evenly.
    wanted = (1 + (of_aunt - 1) * 4 / 19) / 5
    assert asked.page.locator(".dial .line.relevance").count() == 0
    asked.page.get_by_label("useful: How often should I oil my chain?").first.check()
    asked.page.locator(".dial .line.relevance").wait_for()
    target = asked.page.locator(f".dial [data-provider='{aunt}'] .hidden").inner_text()
    assert f"target {100 * wanted:.1f}" in target


def test_marks_are_of_the_collection_that_was_asked(asked: ConsolePage, client: Client) -> None:
    page = asked.page
    client.ingest([Passage(id="p1", title="One", text="Text", attributes={"provider": "A"})], "console-other")
    try:
        page.reload()
        page.get_by_label("Collection", exact=True).select_option(DEMO)
        asked.ask(QUESTION)
        page.locator(".useful input").first.check()
        marked = page.locator(".dial", has_text="the passages you marked")
        marked.wait_for()
        page.get_by_label("Collection", exact=True).select_option("console-other")
        asked.ask(QUESTION)
        page.locator(".dial [data-provider='A']").wait_for()
        marked.wait_for(state="detached")
    finally:
        client.delete_collection("console-other")


def test_a_citation_opens_its_passage_at_the_answer(asked: ConsolePage) -> None:
    answer = asked.page.locator(".said").inner_text()
    asked.page.locator(".cited").first.click()
    assert asked.page.locator("dialog mark").inner_text().lower() == answer.lower()
    asked.page.keyboard.press("Escape")
    asked.page.locator("dialog[open]").wait_for(state="detached")


def test_a_generator_that_dies_within_an_ask_is_named_and_answers_when_it_is_back(
    console: ConsolePage, mesh: RunningMesh, tmp_path: Path
) -> None:
    generator = Killable("evenmesh_generator", "generator", tmp_path)
    others = {
        f"{name.upper()}_TARGET": getattr(mesh.addresses, name)
        for name in ("retriever", "reranker", "evaluator")
    }
    orchestrator = Killable(
        "evenmesh_orchestrator", "orchestrator", tmp_path, GENERATOR_TARGET=generator.address, **others
    )
    addresses = replace(mesh.addresses, orchestrator=orchestrator.address, generator=generator.address)
    with serving(generator, orchestrator), ExitStack() as stack:
        served = stack.enter_context(GatewayProcess(tmp_path, addresses))
        browser = console.page.context.browser
        assert browser is not None
        page = stack.enter_context(browser.new_context()).new_page()
        console = ConsolePage(page, served.url)
        console.open("ask")
        psutil.Process(generator.pid).suspend()  # so that the answer has begun and not ended when it dies
        page.get_by_label("Question", exact=True).fill(QUESTION)
        page.get_by_role("button", name="Ask", exact=True).click()
        page.get_by_text("What the model was given").wait_for()
        generator.kill()
        page.locator(".result .problem").wait_for()
        assert page.get_by_text("What the model was given").count() == 1  # what came stays
        stack.enter_context(serving(generator))
        page.locator(".result").get_by_role("button", name="Try again").click()
        page.get_by_text("Where the time went").wait_for()
        assert page.locator(".said").inner_text()
        assert console.complaints == []


def test_what_helped_is_recorded_for_the_agent_of_the_console(asked: ConsolePage, client: Client) -> None:
    def recorded() -> int:
        return sum(one.num_feedback for one in client.agents() if one.agent.task_id == "console")

    before = recorded()
    asked.page.get_by_role("button", name="Helped: How often should I oil my chain?", exact=True).click()
    asked.page.get_by_text("Recorded for the agent console").wait_for()
    after = recorded()
    assert after == before + 1
    cited = asked.page.locator(".cited").count()
    asked.page.get_by_role("button", name="The answer did not help").click()
    asked.page.locator(".helped [aria-pressed=true]").wait_for()
    assert asked.page.locator(".given [aria-pressed=true]").count() >= cited
    ends = time.monotonic() + 30
    while recorded() < after + cited and time.monotonic() < ends:  # they are sent one after the other
        time.sleep(0.1)
    assert recorded() == after + cited, "one for each passage that the answer was taken from"
    # A reply that is lost is asked for again, and the item counts once.
    asked.page.route(
        "**/*FeedbackService/RecordFeedback", lambda route: (route.fetch(), route.abort()), times=1
    )
    helped = asked.page.get_by_role("button", name=f"Helped: {QUESTION}", exact=True)
    helped.click()
    asked.page.locator(".result .problem").wait_for()
    helped.click()
    asked.page.locator(".result .problem").wait_for(state="detached")
    assert recorded() == after + cited + 1


def test_a_conversation_has_the_relevance_and_fairness_of_the_mesh(
    console: ConsolePage, client: Client
) -> None:
    turns = (QUESTION, "And how do I clean it?")
    providers = sorted({one.attributes["provider"] for one in PASSAGES})
    options = {"targets": [GroupTarget("provider", tuple(providers))]}
    console.open("talk")
    with client.converse(collection=DEMO, k=5, depth=20, conversation=options) as talk:
        for number, words in enumerate(turns, start=1):
            console.say(words, number)
            turn = talk.answer(words)
            assert turn.report is not None
            for shown, wanted in (
                ("relevance", turn.report.relevance),
                ("fairness", turn.report.group_fairness),
            ):
                value = console.page.locator(f"[data-{shown}]").get_attribute(f"data-{shown}")
                assert float(value or "nan") == pytest.approx(wanted, abs=1e-12)
            assert console.page.locator(".reply .said").nth(number - 1).inner_text() == turn.text
        # The second turn was searched with words of the first.
        assert "oil" in console.page.locator(".searched").last.inner_text()
        assert sum(console.shares(".so-far").values()) == pytest.approx(1)
        with console.page.expect_download() as saved:
            console.page.get_by_role("button", name="Save the text").click()
        assert Path(saved.value.path()).read_text(encoding="utf-8") == talk.transcript
    assert console.is_readable()


def test_a_conversation_asks_the_collection_that_was_asked_last(asked: ConsolePage, client: Client) -> None:
    page = asked.page
    client.ingest([Passage(id="p1", title="One", text="Text", attributes={"provider": "A"})], "a-first-one")
    try:
        asked.open("talk")
        page.reload()
        chosen = page.get_by_label("Collection", exact=True)
        page.locator("option", has_text=DEMO).wait_for(state="attached")
        assert chosen.input_value() == "a-first-one", "the first, where nothing was asked"
        asked.open("ask")
        chosen.select_option(DEMO)
        asked.ask(QUESTION)
        asked.open("talk")
        page.get_by_label("Your turn", exact=True).wait_for()
        assert chosen.is_visible(), "it stands beside the question"
        assert chosen.input_value() == DEMO
        asked.open("ask")
        page.get_by_label("Question", exact=True).wait_for()
        assert chosen.input_value() == DEMO
    finally:
        client.delete_collection("a-first-one")


def test_a_vote_has_the_scores_and_likenesses_of_the_mesh(
    console: ConsolePage, client: Client, mesh: RunningMesh
) -> None:
    console.open("vote")
    console.vote(QUESTION, *MEMBERS)
    rows = console.page.locator("[data-member]")
    voices = [rows.nth(at).locator(".voice").inner_text() for at in range(len(MEMBERS))]
    found = client.answer(QUESTION, ensemble=MEMBERS, observe=False)
    assert dict(zip(MEMBERS, voices, strict=True)) == {one.member: one.text for one in found.answers}
    with grpc.insecure_channel(mesh.addresses.evaluator) as channel:
        request = evaluator_pb.VoteRequest(question=QUESTION, answers=voices)
        vote = EvaluatorServiceStub(channel).Vote(request, timeout=60)
    scores = rows.evaluate_all("all => all.map(one => Number(one.dataset.score))")
    assert scores == pytest.approx(list(vote.scores), abs=1e-12)
    leads = console.page.locator("[data-member].leads").get_attribute("data-member")
    assert leads == MEMBERS[vote.winner] == (found.vote and found.vote.member)
    alike = console.page.locator("[data-alike]").evaluate_all(
        "all => all.map(one => Number(one.dataset.alike))"
    )
    pairs = [token_f1(one, other) for i, one in enumerate(voices) for j, other in enumerate(voices) if i != j]
    assert alike == pytest.approx(pairs, abs=1e-12)

    # The vote is replayed by the keyboard: after two answers only these two are compared.
    console.page.get_by_label("Answers counted").focus()
    console.page.keyboard.press("Home")
    console.page.keyboard.press("ArrowRight")
    console.page.get_by_text("after 2 of 4 answers").wait_for()
    assert console.page.locator("[data-alike]").count() == 2
    assert console.page.locator("[data-score]").count() == 2
    assert console.is_readable()


def test_a_passage_is_text_whatever_it_holds(console: ConsolePage, client: Client) -> None:
    script = "<script>window.taken = 1</script><img src=x onerror='window.taken = 1'>"
    right_to_left = "شحّم السلسلة كل مئتي كيلومتر. " * 400
    passages = [
        Passage(id="script", title="<b>Oil</b>", text=script, attributes={"provider": "<i>Odd</i>"}),
        Passage(id="rtl", title="سلسلة", text=right_to_left[:9_999] + "!", attributes={"provider": "نادٍ"}),
    ]
    client.ingest(passages, "odd")
    console.open("collections")
    console.page.reload()
    console.page.get_by_role("button", name="odd").click()
    console.page.get_by_role("button", name="<b>Oil</b>").click()
    assert script in console.page.locator("dialog[open] .text").inner_text()
    console.page.keyboard.press("Escape")
    console.page.set_viewport_size({"width": NARROW, "height": TALL})
    console.page.get_by_role("button", name="سلسلة").click()
    assert console.width() <= NARROW
    shown = console.page.locator("dialog[open] .text")
    assert len(shown.inner_text()) == 10_000
    assert shown.evaluate("one => getComputedStyle(one).direction") == "rtl"
    console.page.keyboard.press("Escape")
    console.page.set_viewport_size({"width": 1280, "height": 900})
    assert console.page.evaluate("window.taken") is None
    client.delete_collection("odd")


def test_a_collection_is_deleted_only_by_its_name(console: ConsolePage, client: Client) -> None:
    client.ingest([Passage(id="p1", title="One", text="Text", attributes={"provider": "A"})], "short-lived")
    console.open("collections")
    console.page.reload()
    console.page.get_by_role("button", name="short-lived").click()
    console.page.get_by_role("button", name="Delete…").click()
    gone = console.page.get_by_role("button", name="Delete it")
    assert gone.is_disabled()
    console.page.get_by_label("Type the name").fill("short-lived")
    gone.click()
    console.page.get_by_role("button", name="short-lived").wait_for(state="detached")
    assert "short-lived" not in [one.name for one in client.collections()]


def test_documents_are_looked_at_first_then_added_and_removed_again(
    console: ConsolePage, client: Client, tmp_path: Path
) -> None:
    contents = {
        "Acme Works/chains.md": b"# Chains\n\nOil the chain every 200 kilometres.\n\n# Wear\n\nReplace it.\n",
        "Bell Company/manual.pdf": document_files.pdf([[(11, "Ring the bell before a corner.")]]),
        "Bell Company/locked.pdf": document_files.pdf([[(11, "x")]], encrypted=True),
    }
    for name, data in contents.items():
        path = tmp_path / "workshop" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    page = console.page
    console.open("collections")
    page.get_by_role("button", name="New collection…").click()
    page.get_by_role("textbox", name="Name").fill("Not a name")
    assert page.get_by_role("button", name="Make it").is_disabled()
    page.get_by_role("textbox", name="Name").fill("workshop")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="workshop").wait_for()
    page.locator("input[type=file]").nth(1).set_input_files(tmp_path / "workshop")

    page.get_by_role("button", name="Look at them first").press("Enter")
    add = page.get_by_role("button", name="Add 3 passages to workshop")
    add.wait_for()
    assert client.collection("workshop").num_passages == 0, "it was a look alone"
    seen = page.locator(".seen")
    assert seen.locator("tbody th").all_inner_texts() == ["Acme Works", "Bell Company"]
    seen.get_by_text("Not read: 1").press("Enter")
    assert "Bell Company/locked.pdf is encrypted" in seen.inner_text()
    assert console.violations() == []
    page.set_viewport_size({"width": NARROW, "height": TALL})
    assert console.width() <= NARROW
    page.set_viewport_size({"width": 1280, "height": 900})

    add.press("Enter")
    page.get_by_text("3 passages added. 1 file could not be read.").wait_for()
    found = client.retrieve("Ring the bell", collection="workshop", k=1).passages[0]
    assert (found.attributes["document"], found.attributes["page"]) == ("Bell Company/manual.pdf", "1")
    assert found.attributes["provider"] == "Bell Company"

    page.get_by_role("button", name="Acme Works").first.press("Enter")
    page.get_by_text("2 whose provider is Acme Works").wait_for()
    page.locator(".passage").first.press("Enter")
    page.get_by_role("textbox", name="Question").fill("oil the chain")
    page.keyboard.press("Enter")
    page.get_by_text("retrievers find it.").wait_for()
    rows = page.locator(".finds tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(cell => cell.innerText))"
    )
    assert [row[0] for row in rows] == [one.name for one in client.retrievers()]
    title = page.locator("dialog[open] h3").inner_text()
    found_by = client.retrieve("oil the chain", collection="workshop", retriever="bm25-lucene", k=3).passages
    place = 1 + [one.title for one in found_by].index(title)
    assert next(row[1] for row in rows if row[0] == "bm25-lucene") == f"{place} of {len(found_by)}"
    page.get_by_role("button", name="Delete this passage…").press("Enter")
    assert (
        "for everybody of this tenant" in page.get_by_role("dialog", name="Delete this passage?").inner_text()
    )
    page.get_by_role("button", name="Delete it").last.press("Enter")
    page.get_by_text("1 passage is removed.").wait_for()
    page.get_by_role("button", name="Acme Works").first.click()
    page.get_by_role("button", name="Delete this passage…").click()
    page.get_by_role("button", name="Delete it").last.click()
    page.get_by_role("button", name="Acme Works").first.wait_for(state="detached")
    assert client.collection("workshop").num_passages == 1
    client.delete_collection("workshop")


def test_an_upload_that_is_refused_says_why_and_can_be_stopped(
    console: ConsolePage, client: Client, tmp_path: Path
) -> None:
    (tmp_path / "locked.pdf").write_bytes(document_files.pdf([[(11, "x")]], encrypted=True))
    client.ingest([Passage(id="p1", title="One", text="Text", attributes={"provider": "A"})], "stopped")
    page = console.page
    console.open("collections")
    page.reload()
    page.get_by_role("button", name="stopped").click()
    page.get_by_text("Add documents").click()
    page.locator("input[type=file]").first.set_input_files(tmp_path / "locked.pdf")
    page.get_by_role("button", name="Look at them first").click()
    page.get_by_text("There is nothing to add.").wait_for()
    page.get_by_label("all of them are from").check()
    page.get_by_label("Provider", exact=True).fill("Someone")
    page.route("**/documents*", lambda _: None)  # no answer comes
    page.get_by_role("button", name="Look at them first").click()
    page.locator("progress").wait_for()
    page.get_by_role("button", name="Stop", exact=True).click()
    page.locator("progress").wait_for(state="detached")
    assert page.locator(".problem").count() == 0
    page.unroute("**/documents*")
    page.route(
        "**/documents*", lambda route: route.fulfill(status=429, json={"detail": "the service is busy"})
    )
    page.get_by_role("button", name="Look at them first").click()
    assert "the service is busy" in page.locator(".problem").inner_text()
    page.unroute("**/documents*")
    client.delete_collection("stopped")


def test_a_collection_shows_how_each_attribute_is_distributed(console: ConsolePage) -> None:
    page = console.page
    console.open("collections")
    page.get_by_role("button", name=DEMO).click()
    for attribute in ("provider", "topic"):
        page.get_by_label("Attribute", exact=True).select_option(attribute)
        counts = Counter(one.attributes[attribute] for one in PASSAGES)
        rows = page.locator("table.bars tbody tr")
        page.get_by_role("button", name=max(counts, key=counts.__getitem__), exact=True).wait_for()
        shown = dict(
            rows.evaluate_all(
                "rows => rows.map(row => [row.cells[0].innerText.trim(), parseInt(row.cells[2].innerText)])"
            )
        )
        assert shown == {name: counts[name] for name in shown}
        assert sorted(shown.values(), reverse=True) == sorted(counts.values(), reverse=True)[:12]


def test_a_search_finds_what_the_retriever_finds(console: ConsolePage, client: Client) -> None:
    console.open("collections")
    console.page.get_by_role("button", name=DEMO).click()
    console.page.get_by_label("Search this collection").fill(QUESTION)
    console.page.get_by_role("button", name="Search", exact=True).click()
    console.page.get_by_text("best, by").wait_for()
    titles = console.page.locator(".passage strong").all_inner_texts()
    found = client.retrieve(QUESTION, collection=DEMO, depth=20, k=20)
    assert titles == [one.title for one in found.passages]


def test_runs_show_the_means_of_the_report(console: ConsolePage, client: Client) -> None:
    for _ in range(2):
        client.answer(QUESTION, collection=DEMO, alpha=1, samples=4, run_id="console-run", run_report=True)
    console.open("runs")
    console.page.reload()
    console.page.get_by_role("button", name="console-run").click()
    console.page.get_by_role("heading", name="console-run").wait_for()
    report = client.report("console-run")
    row = console.page.locator("[data-quantity=ee_d_norm]")
    assert float(row.get_attribute("data-mean") or "nan") == report.ee_d_norm.mean
    console.page.locator(".ask-dot").nth(1).wait_for(state="attached")
    console.page.locator(".compare input").fill("console-run-of-nobody")
    with console.page.expect_download() as saved:
        console.page.get_by_role("button", name="Report").click()
    assert saved.value.suggested_filename == "console-run.html"
    page = Path(saved.value.path()).read_text(encoding="utf-8")
    for provider in report.providers[:3]:
        assert f"<td>{html.escape(provider.name)}</td>" in page
    assert report.ee_d_norm.mean is not None
    assert f"<td>disparity</td><td>{report.ee_d_norm.mean:.3f}" in page
    assert "<svg" in page
    assert not re.search(r"<script|src=|href=|url\(", page)


def withheld(console: ConsolePage, held: list[Route]) -> Route:
    """Return the request that a route withholds, once it is there."""
    ends = time.monotonic() + 30
    while not held and time.monotonic() < ends:
        console.page.wait_for_timeout(20)
    return held.pop()


def test_numbers_of_another_run_are_gone_before_the_reply(console: ConsolePage, client: Client) -> None:
    page = console.page
    runs = ("console-first", "console-second")
    for asks, run in enumerate(runs, start=1):
        for _ in range(asks):
            client.answer(QUESTION, collection=DEMO, alpha=1, samples=4, run_id=run, run_report=True)
    numbers = page.locator("[data-quantity], [data-share], .ask-dot, .asks")
    held: list[Route] = []
    console.open(f"runs/{runs[1]}")
    page.locator(".ask-dot").nth(1).wait_for(state="attached")
    page.route("**/*EvaluatorService/GetReport", lambda route: held.append(route))

    page.goto(f"{console.url}/console/#/runs/{runs[0]}")
    page.get_by_role("heading", name=runs[0]).wait_for()
    page.get_by_text("reading…").wait_for()
    assert numbers.count() == 0
    assert page.get_by_role("button", name="Report").count() == 0
    withheld(console, held).abort()
    page.locator(".problem").wait_for()
    assert "still shown" not in page.locator(".problem").inner_text()
    assert numbers.count() == 0
    page.get_by_role("button", name="Try again").click()
    page.get_by_text("reading…").wait_for()
    withheld(console, held).continue_()
    page.locator(".asks").wait_for()

    # Of another span, and again of the same one.
    page.get_by_label("Which asks", exact=True).select_option("the last hour")
    page.get_by_text("reading…").wait_for()
    assert numbers.count() == 0
    withheld(console, held).abort()
    page.locator(".problem").wait_for()
    page.unroute("**/*EvaluatorService/GetReport")
    page.get_by_label("Which asks", exact=True).select_option("all asks")
    page.locator(".asks").wait_for()
    page.route("**/*EvaluatorService/ListMeasurements", lambda route: held.append(route))
    page.get_by_label("Which asks", exact=True).evaluate(
        "one => one.dispatchEvent(new Event('change', {bubbles: true}))"
    )
    page.locator("button[disabled]", has_text="Report").wait_for()
    assert numbers.count() > 0
    withheld(console, held).abort()
    page.get_by_text("What came before is still shown").wait_for()
    page.unroute("**/*EvaluatorService/ListMeasurements")

    page.goto(f"{console.url}/console/#/runs/console-run-of-nobody")
    page.get_by_role("heading", name="console-run-of-nobody").wait_for()
    page.locator(".problem", has_text="Not found").wait_for()
    assert numbers.count() == 0


def test_what_is_looked_at_now_stays_when_an_earlier_reply_is_late(
    console: ConsolePage, client: Client
) -> None:
    page = console.page
    client.ingest([Passage(id="late", title="Late", text="Another text.")], "console-late")
    titles = page.locator(".passage strong")
    held: list[Route] = []
    console.open("collections")
    page.reload()

    # The list of a collection comes after what was searched in it.
    page.route("**/*CollectionService/ListPassages", lambda route: held.append(route))
    page.get_by_role("button", name=DEMO).click()
    page.get_by_text("reading…").wait_for()
    page.get_by_label("Search this collection").fill(QUESTION)
    page.get_by_role("button", name="Search", exact=True).click()
    page.get_by_text("best, by").wait_for()
    found = titles.all_inner_texts()
    while held:
        held.pop().continue_()
    page.locator("table.bars").wait_for()
    assert titles.all_inner_texts() == found
    page.unroute("**/*CollectionService/ListPassages")

    # A search is given up with its collection.
    page.route("**/*RetrieverService/Retrieve", lambda route: held.append(route))
    page.get_by_role("button", name="Search", exact=True).click()
    search = withheld(console, held)
    with page.expect_event("requestfailed", lambda request: request == search.request):
        page.get_by_role("button", name="console-late").click()
    page.get_by_text("The first 1, by id").wait_for()
    assert titles.all_inner_texts() == ["Late"]
    assert page.locator(".problem").count() == 0
    page.unroute("**/*RetrieverService/Retrieve")
    client.delete_collection("console-late")


def test_a_run_is_compared_with_the_one_that_was_named_last(console: ConsolePage, client: Client) -> None:
    page = console.page
    runs = ("console-one", "console-two", "console-three")
    for run in runs:
        client.answer(QUESTION, collection=DEMO, alpha=1, samples=4, run_id=run, run_report=True)
    console.open(f"runs/{runs[0]}")
    page.reload()
    page.locator(".compare input").wait_for()
    held: list[Route] = []
    page.route("**/*EvaluatorService/GetReport", lambda route: held.append(route))
    page.locator(".compare input").fill(runs[1])
    page.locator(".compare input").press("Tab")
    first = withheld(console, held)
    page.locator(".compare input").fill(runs[2])
    with page.expect_event("requestfailed", lambda request: request == first.request):
        page.locator(".compare input").press("Tab")
    withheld(console, held).continue_()
    page.locator(".compare", has_text=f"{runs[2]}, all asks").wait_for()
    assert page.locator(".problem").count() == 0
    page.unroute("**/*EvaluatorService/GetReport")


def test_a_mean_that_is_not_over_all_asks_says_over_how_many(console: ConsolePage, client: Client) -> None:
    page = console.page
    for references in ([], ["every 200 km"]):
        client.answer(
            QUESTION,
            collection=DEMO,
            alpha=1,
            samples=4,
            references=references,
            run_id="console-some",
            run_report=True,
        )
    report = client.report("console-some")
    assert report.expected_utility.count < report.num_observations
    console.open("runs/console-some")
    page.locator(".ask-dot").nth(1).wait_for(state="attached")
    some = f"of {report.expected_utility.count} ask"
    assert some in page.locator("[data-quantity=expected_utility]").inner_text()
    assert " ask" not in page.locator("[data-quantity=ee_d_norm]").inner_text()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Report").click()
    written = Path(saved.value.path()).read_text(encoding="utf-8")
    assert f"<td>utility</td><td>{report.expected_utility.mean:.3f} {some}" in written
    assert console.is_readable()


def test_a_run_of_votes_shows_their_agreement_over_time(console: ConsolePage, client: Client) -> None:
    page = console.page
    for _ in range(2):
        client.answer(QUESTION, ensemble=MEMBERS[:2], run_id="console-votes", run_report=True)
    agreement = client.report("console-votes").vote_agreement
    assert agreement is not None
    page.goto(f"{console.url}/console/#/runs/console-votes")
    page.reload()
    page.get_by_role("heading", name="console-votes").wait_for()
    mean = page.locator("[data-quantity=vote_agreement]").get_attribute("data-mean")
    assert float(mean or "nan") == agreement.mean
    page.get_by_label("Quantity", exact=True).select_option("vote_agreement")
    page.get_by_role("img", name="agreement of votes of 2 asks over time").wait_for()
    assert page.locator(".band").get_attribute("d"), "its interval"


def test_a_configuration_shows_the_report_over_all_runs(console: ConsolePage, client: Client) -> None:
    page = console.page
    for run in ("console-configured-1", "console-configured-2"):
        client.answer(QUESTION, collection=DEMO, alpha=3.25, samples=4, run_id=run)
    # Observations arrive after the answers; a repeated test adds to what it asked before.
    (configured,) = eventually(
        lambda: [one for one in client.configurations() if one.configuration.alpha == 3.25],
        lambda found: sum(one.num_observations for one in found) >= 2,
    )
    report = client.report(configuration=configured.configuration)
    console.open("runs")
    held: list[Route] = []
    page.route("**/*EvaluatorService/ListRuns", lambda route: held.append(route))
    page.reload()
    page.get_by_role("button", name="Configurations").press("Enter")  # before the runs are there
    page.locator(".configuration").first.wait_for()
    held.pop().continue_()
    page.unroute("**/*EvaluatorService/ListRuns")
    page.locator(".configuration", has_text="α 3.25").press("Enter")
    page.get_by_role("heading", name="α 3.25").wait_for()
    asks = configured.num_observations
    page.get_by_text(f"{asks} asks, {4 * asks} rankings").wait_for()
    mean = page.locator("[data-quantity=ee_d_norm]").get_attribute("data-mean")
    assert float(mean or "nan") == report.ee_d_norm.mean
    assert console.violations() == []
    page.set_viewport_size({"width": NARROW, "height": TALL})
    assert console.width() <= NARROW
    page.set_viewport_size({"width": 1280, "height": 900})
    with page.expect_download() as saved:
        page.get_by_role("button", name="Report").press("Enter")
    assert "α 3.25" in Path(saved.value.path()).read_text(encoding="utf-8")
    page.get_by_label("List", exact=True).get_by_role("button", name="Runs").press("Enter")
    page.get_by_role("button", name="console-configured-2").press("Enter")
    page.get_by_role("heading", name="console-configured-2").wait_for()


def test_an_ask_of_a_run_shows_what_it_showed(console: ConsolePage, client: Client) -> None:
    page = console.page
    settings: dict[str, Any] = {
        "collection": DEMO,
        "alpha": 1,
        "samples": 4,
        "useful": ["bike-0001", "bike-0002"],
    }
    found = client.answer(QUESTION, run_id="console-ask", run_report=True, **settings)
    assert found.report is not None
    (measured,) = client.measurements("console-ask")
    page.goto(f"{console.url}/console/#/runs/console-ask")
    page.locator(".asks .link").first.press("Enter")
    page.get_by_role("dialog", name=QUESTION).get_by_text("What was shown").wait_for()
    assert page.url.endswith(f"/console-ask/{measured.observation_id}"), "an address that can be kept"
    rankings: dict[str, int] = {}
    for one in found.answers:
        rankings[one.text] = rankings.get(one.text, 0) + len(one.samples)
    first = page.locator("dialog[open] .said").first.inner_text()
    assert any(first == f"{text} in {number} of 4 rankings" for text, number in rankings.items())
    assert f" in {max(rankings.values())} of 4" in first
    shares = {name: share for name, share in console.shares("dialog[open]").items() if share}
    assert shares == pytest.approx({one.name: one.share for one in found.report.providers if one.share})
    shown = page.locator("dialog[open] [data-exposure]").evaluate_all(
        "rows => rows.map(row => Number(row.dataset.exposure))"
    )
    assert sum(shown) == pytest.approx(5), "the model was given five passages"
    assert console.violations() == []
    page.set_viewport_size({"width": NARROW, "height": TALL})
    assert console.width() <= NARROW
    page.set_viewport_size({"width": 1280, "height": 900})
    page.locator("dialog[open] .given .link").first.press("Enter")
    page.locator("dialog[open] .text").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.locator("dialog[open]").wait_for(state="detached")
    page.reload()
    page.goto(f"{console.url}/console/#/runs/console-ask/{measured.observation_id}")
    page.get_by_role("dialog", name=QUESTION).wait_for()
    page.keyboard.press("Escape")


def test_ten_thousand_runs_are_few_rows_of_the_page(
    console: ConsolePage, mesh: RunningMesh, tmp_path: Path
) -> None:
    """An evaluator of its own holds them; the gateway and the page are real."""
    runs = 10_000
    with evaluator_process.with_runs(tmp_path, runs) as address:
        addresses = replace(mesh.addresses, evaluator=address)
        (tmp_path / "gateway").mkdir()
        with GatewayProcess(tmp_path / "gateway", addresses) as served:
            page = console.page
            page.goto(f"{served.url}/console/#/runs")
            rows = page.locator(".virtual li")
            rows.first.wait_for()
            most = 0
            for _ in range(30):
                page.locator(".virtual").evaluate("list => list.scrollTo(0, list.scrollHeight)")
                most = max(most, rows.count())
                if page.locator(f".virtual [aria-posinset='{runs}']").count():
                    break
                page.wait_for_timeout(200)
            page.locator(f".virtual [aria-posinset='{runs}']").wait_for()
            assert "run-0" in rows.last.inner_text()
            assert most < 60
            assert page.locator("*").count() < 1_000
            console.strangers.clear()  # the other gateway is no stranger


def test_trainings_are_listed_with_what_they_have_to_learn_from(console: ConsolePage, client: Client) -> None:
    agent = Agent("trained", "tester")
    client.record_feedback([Feedback(f"q{one}", "p1", one / 2, agent) for one in range(3)])
    status = client.training_status()
    (of_agent,) = [one for one in status.trainings if one.agent == agent]
    console.open("agents")
    console.page.reload()
    row = console.page.locator("[data-training='trained · tester']")
    row.wait_for()
    assert row.locator("td").nth(1).inner_text().split() == [
        str(of_agent.pending_feedback),
        str(of_agent.pending_queries),
        "queries",
    ]
    assert console.page.locator("[data-training]").count() == len(status.trainings)
    assert console.is_readable()


def test_a_version_is_promoted_and_rolled_back_with_a_confirmation(
    console: ConsolePage, client: Client, mesh: RunningMesh, tmp_path: Path
) -> None:
    agent = Agent("console", "tester")
    client.record_feedback([Feedback("q", "p1", 0.75, agent), Feedback("r", "p1", 0.25, agent)])
    before = next(one for one in client.models() if one.serving)
    store = ModelStore(mesh.home / "reranker" / "models")
    version = tiny_encoders.keep(store, tiny_models.cross_encoder(tmp_path), "made for a test")
    tiny_encoders.convert_first(store, version, mesh.home)
    page = console.page
    try:
        console.open("agents")
        page.reload()
        assert (
            "0.50"
            in page.get_by_role("region", name="Agents")
            .get_by_role("row", name="console · tester")
            .inner_text()
        )
        page.get_by_role("button", name=f"Promote… {version}").click()
        assert before.version in page.locator("dialog[open] p").inner_text()
        page.get_by_role("button", name="Promote", exact=True).click()
        page.get_by_text(f"Version {version} serves all agents").wait_for()
        assert next(one for one in client.models() if one.serving).version == version
        page.get_by_role("button", name="Roll back…", exact=True).click()
        page.get_by_role("button", name="Roll back", exact=True).click()
        page.get_by_text(f"Version {before.version} serves all agents").wait_for()
    finally:
        assert next(one for one in client.models() if one.serving).version == before.version
        store.remove(version)


def test_an_agent_is_deleted_after_a_confirmation_that_names_it(console: ConsolePage, client: Client) -> None:
    """A task and a model of one name are two agents."""
    task, model = Agent("twin", ""), Agent("", "twin")
    client.record_feedback([Feedback("q", "p1", 0.75, task), Feedback("r", "p1", 0.25, task)])
    client.record_feedback([Feedback("q", "p1", 1.0, model)])
    page = console.page
    console.open("agents")
    page.reload()
    dialog, buttons = (
        page.locator("dialog[open]"),
        page.get_by_role("button", name=re.compile("Delete… .*twin")),
    )
    of_task = page.get_by_role("button", name="Delete… twin", exact=True)
    of_task.click()
    assert buttons.count() == 2
    assert page.get_by_role("dialog", name="Delete twin?").count() == 1
    assert dialog.locator("dd").all_inner_texts() == ["twin", "–", "2", "0"]
    assert console.is_readable()
    page.get_by_role("button", name="Keep it as it is").click()
    dialog.wait_for(state="detached")
    assert {task, model} <= {one.agent for one in client.agents()}
    of_task.click()
    page.get_by_role("button", name="Delete it", exact=True).click()
    page.get_by_text("twin is deleted: 2 items of feedback and 0 versions of its own.").wait_for()
    assert buttons.count() == 1
    left = {one.agent for one in client.agents()}
    assert task not in left
    assert model in left
    # Somebody else deletes the other one while the page shows it.
    client.delete_agent(model)
    page.get_by_role("button", name="Delete… model twin").click()
    page.get_by_role("button", name="Delete it", exact=True).click()
    page.get_by_text("There is no agent model twin any more.").wait_for()
    assert buttons.count() == 0


def test_a_role_that_only_gives_feedback_or_only_asks_has_no_buttons_of_others(
    console: ConsolePage, mesh: RunningMesh, tmp_path: Path
) -> None:
    keys = {}
    for name in (Role.FEEDBACK, Role.ASK):
        keys[name], digest = new_key()
        add_entry(
            tmp_path / "keys.toml",
            KeyEntry(name=name, sha256=digest, tenant=DEFAULT_TENANT, roles=frozenset({name})),
        )
    browser = console.page.context.browser
    assert browser is not None
    with (
        GatewayProcess(tmp_path, mesh.addresses, EVENMESH_API_KEYS=str(tmp_path / "keys.toml")) as served,
        browser.new_context() as context,
    ):
        other = ConsolePage(context.new_page(), served.url)
        page = other.page
        page.goto(f"{served.url}/console/#/agents")
        page.get_by_label("API key or token").fill(keys[Role.FEEDBACK])
        page.get_by_role("button", name="Sign in").click()
        page.locator(".version").first.wait_for()
        for words in ("Promote…", "Roll back…", "items from", "Delete…"):
            assert page.get_by_role("button", name=words).count() == 0
        page.get_by_role("button", name="Sign out feedback").click()
        page.get_by_label("API key or token").fill(keys[Role.ASK])
        page.get_by_role("button", name="Sign in").click()
        page.get_by_label("Question", exact=True).wait_for()
        other.ask(QUESTION)
        page.get_by_role("heading", name="What the model was given").wait_for()
        assert page.locator(".judge").count() == 0
        assert other.complaints == []


def test_health_says_that_all_services_serve(console: ConsolePage) -> None:
    console.open("health")
    console.page.get_by_text("All 5 services serve").wait_for()
    assert console.page.locator(".tile").count() == 5


def answered(console: ConsolePage) -> None:
    """Ask on the page that is open, unless an answer is there."""
    if console.page.locator("[data-disparity]").count() == 0:
        console.ask(QUESTION)


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_serious(console: ConsolePage, name: str, colours: Colours) -> None:
    console.page.emulate_media(color_scheme=colours, reduced_motion="reduce")
    console.open(name)
    if name == "ask":
        answered(console)
    else:
        shown = {
            "talk": "#turn",
            "vote": ".roster-edit",
            "audits": ".audit-form",
            "statements": ".statement-form",
            "agents": ".version",
            "health": ".tile",
        }
        console.page.locator(shown.get(name, ".bars")).first.wait_for()
    assert console.violations() == []


@pytest.mark.parametrize("width", [NARROW, 640])
@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_cut_off_on_a_phone_or_at_200_per_cent(
    console: ConsolePage, name: str, width: int
) -> None:
    """At 200 per cent a window of 1280 pixels has 640 of CSS."""
    console.page.set_viewport_size({"width": width, "height": TALL})
    console.open(name)
    if name == "ask":
        answered(console)
    assert console.width() <= width
    console.page.set_viewport_size({"width": 1280, "height": 900})
