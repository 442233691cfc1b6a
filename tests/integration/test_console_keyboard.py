"""Every flow of the console by the keyboard alone: Tab leads to what is pressed, in Chromium before the real mesh."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenmesh import Agent, Client, Feedback
from evenmesh_reranker.models.store import ModelStore
from evenmesh_studies import demo
from tests.integration.conftest import DEMO, RunningMesh
from tests.support import tiny_encoders, tiny_models
from tests.support.console_page import WIDE, ConsolePage, chromium
from tests.support.gateway_process import GatewayProcess

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(900)]

QUESTION = "How often should I oil my chain?"


@pytest.fixture(scope="module")
def console(served: GatewayProcess) -> Iterator[ConsolePage]:
    """The console; at the end nothing has left the origin or been complained of."""
    with chromium() as browser:
        console = ConsolePage(browser.new_page(viewport=WIDE, reduced_motion="reduce"), served.url)
        console.open("health")
        yield console
        assert console.strangers == []
        assert console.complaints == []


def go_to(console: ConsolePage, name: str, title: str) -> None:
    """Follow the link to a page."""
    console.page.reload()
    console.press(name, role="link")
    console.page.get_by_role("heading", name=title, level=1).wait_for()


def write(console: ConsolePage, label: str, text: str) -> None:
    """Reach a field, and write into it instead of what is there."""
    console.reach(console.page.get_by_label(label, exact=True).first)
    console.page.keyboard.press("ControlOrMeta+a")
    console.page.keyboard.insert_text(text)


@pytest.mark.parametrize(
    ("name", "label"), [("ask", "Question"), ("talk", "Your turn"), ("vote", "Question")]
)
def test_enter_that_ends_the_input_of_a_word_sends_nothing(
    console: ConsolePage, name: str, label: str
) -> None:
    """As where Japanese is written: Enter chooses the signs of a word, and only the next one sends."""
    console.open(name)
    field = console.page.get_by_label(label, exact=True).first
    field.fill("チェーンに")
    sends = """(one, isComposing) => !one.dispatchEvent(
        new KeyboardEvent("keydown", {key: "Enter", isComposing, bubbles: true, cancelable: true}))"""
    assert not field.evaluate(sends, True)
    field.fill("")
    assert field.evaluate(sends, False)  # it would send, were there a question


def test_ask_turn_the_dial_and_answer_beside(console: ConsolePage, client: Client) -> None:
    page, keyboard = console.page, console.page.keyboard
    go_to(console, "Ask", "Ask, and see who is shown")
    keyboard.press("Tab")
    write(console, "Question", QUESTION)
    keyboard.press("Enter")
    page.locator("[data-disparity]").wait_for()
    page.get_by_label("Fairness dial", exact=True).wait_for()
    console.press("Fairness dial", "Home", role="slider")
    assert page.locator("output").inner_text() == "α = 0"
    console.press("Sample 1 of 40", "ArrowRight", role="slider")
    page.get_by_text("Sample 2 of 40").wait_for()
    console.reach(page.locator("ol.ranking input[type=checkbox]").first)
    keyboard.press("Space")
    page.locator(".dial .line.relevance").wait_for()
    console.press("beside the answer above", "Space", role="switch")
    console.press("Answer with this")
    page.locator("[data-disparity]").nth(1).wait_for()
    console.reach(page.locator(".cited").first)
    keyboard.press("Enter")
    page.locator("dialog mark").wait_for()
    keyboard.press("Escape")
    page.locator("dialog[open]").wait_for(state="detached")
    before = sum(one.num_feedback for one in client.agents() if one.agent.task_id == "console")
    console.press("Did not help: How often should I oil my chain?")
    page.get_by_text("Recorded for the agent console").first.wait_for()
    after = sum(one.num_feedback for one in client.agents() if one.agent.task_id == "console")
    assert after == before + 1


def test_skip_to_the_content_read_the_words_and_change_the_colours(console: ConsolePage) -> None:
    page, keyboard = console.page, console.page.keyboard
    page.reload()
    page.locator("main h1").wait_for()
    console.press("Skip to the content", role="link")
    assert page.evaluate("document.activeElement.id") == "main"
    console.press("Words")
    page.get_by_role("dialog", name="Words").wait_for()
    assert console.violations() == []
    keyboard.press("Escape")
    for colours in ("light", "dark", None):
        console.reach(page.locator("button[aria-label^='Colours:']"))
        keyboard.press("Enter")
        assert page.evaluate("document.documentElement.dataset.theme ?? null") == colours
    go_to(console, "Ask", "Ask, and see who is shown")
    console.reach(page.locator("summary", has_text="How it is answered"))
    keyboard.press("Enter")
    console.press("What “sample” means")
    page.get_by_role("note").get_by_text("One ranking drawn at random").wait_for()
    keyboard.press("Escape")


def test_talk_and_save_the_text(console: ConsolePage) -> None:
    page, keyboard = console.page, console.page.keyboard
    go_to(console, "Talk", "Talk, and watch fairness turn by turn")
    for turn, words in enumerate((QUESTION, "And how do I clean it?"), start=1):
        write(console, "Your turn", words)
        page.locator("button:not([disabled])", has_text="Say it").wait_for()
        keyboard.press("Enter")
        page.locator(f"[data-report='{turn}']").wait_for(state="attached")
    with page.expect_download() as saved:
        console.press("Save the text")
    assert "### U2" in Path(saved.value.path()).read_text(encoding="utf-8")
    console.press("New conversation")
    page.locator(".reply").first.wait_for(state="detached")


def test_vote_and_replay(console: ConsolePage) -> None:
    page, keyboard = console.page, console.page.keyboard
    go_to(console, "Vote", "Vote, and watch it tip")
    fields = page.locator(".roster-edit input")
    fields.first.wait_for()
    while fields.count() > 2:
        console.reach(page.locator(".roster-edit button.plain").last)
        keyboard.press("Enter")
    write(console, "Member A", "Lexical@1")
    write(console, "Member B", "Dense@1")
    write(console, "Question", QUESTION)
    keyboard.press("Enter")
    page.locator(".chip", has_text="wins").wait_for()
    # The moment when it was decided is marked.
    assert page.locator("[data-decided]").get_attribute("data-decided") in ("1", "2")
    console.press("Answers counted", "Home", role="slider")
    page.get_by_text("Answer 1 of 2", exact=True).wait_for()
    console.press("Replay")
    page.get_by_text("Answer 2 of 2", exact=True).wait_for()


def test_compare_runs_open_an_ask_and_download(console: ConsolePage, client: Client) -> None:
    page, keyboard = console.page, console.page.keyboard
    for run, alpha in (("keyboard-even", 0.5), ("keyboard-by-score", 8.0)):
        for question in demo.questions()[:2]:
            client.answer(
                question.question,
                collection=DEMO,
                alpha=alpha,
                samples=4,
                seed=1,
                run_id=run,
                query_id=question.id,
                references=question.answers,
                run_report=True,
            )
    go_to(console, "Runs", "Runs")
    entry = page.locator(".virtual .entry", has_text="keyboard-even")
    console.reach(entry)
    keyboard.press("Enter")
    page.get_by_role("heading", name="keyboard-even").wait_for()
    report, other = client.report("keyboard-even"), client.report("keyboard-by-score")
    console.reach(page.locator(".compare input"))
    keyboard.type("keyboard-by-score")
    keyboard.press("Tab")
    disparity = page.locator("[data-quantity=ee_d_norm]")
    disparity.locator(".second").wait_for()
    assert report.ee_d_norm.mean is not None
    assert other.ee_d_norm.mean is not None
    assert other.ee_d_norm.low is not None
    shown = disparity.locator(".number").inner_text()
    assert f"{report.ee_d_norm.mean:.2f}" in shown
    assert f"{other.ee_d_norm.mean:.2f}" in disparity.locator(".second").inner_text()
    assert f"({other.ee_d_norm.low:.2f} to" in disparity.locator(".second").inner_text()
    # Utility over time, with its mean up to then and the interval.
    console.reach(page.get_by_label("Quantity", exact=True))
    keyboard.type("utility")
    page.get_by_role("img", name="utility of 2 asks over time").wait_for()
    assert page.locator(".band").get_attribute("d")
    console.reach(page.locator(".asks .link").first)
    keyboard.press("Enter")
    page.locator("dialog[open]").get_by_text("What was shown").wait_for()
    keyboard.press("Escape")
    page.locator("dialog[open]").wait_for(state="detached")
    with page.expect_download() as saved:
        console.press("Download CSV")
    rows = Path(saved.value.path()).read_text(encoding="utf-8").splitlines()
    assert rows[0].startswith("observation,query,time,configuration,")
    measured = {one.observation_id: one for one in client.measurements("keyboard-even")}
    assert {row.split(",")[0] for row in rows[1:]} == set(measured)
    at = rows[0].split(",").index("ee_d_norm") - len(rows[0].split(","))
    for row in rows[1:]:
        wanted = measured[row.split(",")[0]].quantities["ee_d_norm"]
        assert float(row.split(",")[at]) == pytest.approx(wanted)


def test_begin_stop_and_go_on_with_an_audit(console: ConsolePage) -> None:
    page = console.page
    go_to(console, "Audits", "Audits")
    lines = [
        json.dumps({"query_id": one.id, "question": one.question, "references": list(one.answers)})
        for one in demo.questions()[:2]
    ]
    write(console, "Questions", "\n".join(lines))
    write(console, "Dials", "1, 8")
    write(console, "Rankings of each dial", "2")
    console.press("answer the rankings, to measure utility", "Space", role="switch")
    page.get_by_text("2 questions, 2 dials").wait_for()
    console.press("See what it costs")
    page.get_by_text("exposure alone").wait_for()
    page.route("**/*OrchestratorService/Audit", lambda _: None)
    console.press("Begin")
    console.press("Stop")
    page.locator("[data-audit=stopped]").wait_for()
    page.unroute("**/*OrchestratorService/Audit")
    console.press("Go on")
    page.locator("[data-audit=done]").wait_for()
    with page.expect_download() as saved:
        console.press("CSV")
    assert len(Path(saved.value.path()).read_text(encoding="utf-8").splitlines()) == 1 + 2 * 3
    console.press("Delete…")
    console.press("Delete it")
    page.locator(".audit-form").wait_for()


def test_get_a_statement(console: ConsolePage) -> None:
    """The evaluator of this mesh has no key to sign with, and says so."""
    go_to(console, "Statements", "Statements")
    write(console, "Provider", "Ask Aunt Sprocket")
    console.press("Get the statement")
    assert "EVENMESH_EVALUATOR_STATEMENT_KEY" in console.page.locator(".problem").inner_text()


def test_look_at_feedback_promote_roll_back_and_delete_an_agent(
    console: ConsolePage, client: Client, mesh: RunningMesh, tmp_path: Path
) -> None:
    page, keyboard = console.page, console.page.keyboard
    agent = Agent("keyboard", "tester")
    client.record_feedback([Feedback("What?", "p1", 0.75, agent), Feedback("Which?", "p2", 0.25, agent)])
    before = next(one for one in client.models() if one.serving)
    store = ModelStore(mesh.home / "reranker" / "models")
    version = tiny_encoders.keep(store, tiny_models.cross_encoder(tmp_path), "made for a test")
    tiny_encoders.convert_first(store, version, mesh.home)
    try:
        go_to(console, "Agents", "Agents and models")
        console.press("2 items from keyboard · tester")
        page.get_by_role("dialog", name="Feedback of keyboard · tester").wait_for()
        page.locator("[data-usefulness]").nth(1).wait_for()
        shown = page.locator("[data-usefulness]").evaluate_all(
            "rows => rows.map(row => Number(row.dataset.usefulness))"
        )
        assert shown == [0.25, 0.75], "newest first"
        assert "Which?" in page.locator("[data-usefulness]").first.inner_text()
        assert console.violations() == []
        keyboard.press("Escape")
        page.locator("dialog[open]").wait_for(state="detached")
        console.press(f"Promote… {version}")
        assert before.version in page.locator("dialog[open] p").inner_text()
        console.press("Promote")
        page.get_by_text(f"Version {version} serves all agents").wait_for()
        console.press("Roll back…")
        console.press("Roll back")
        page.get_by_text(f"Version {before.version} serves all agents").wait_for()
        console.press("Delete… keyboard · tester")
        page.get_by_role("dialog", name="Delete keyboard · tester?").wait_for()
        console.press("Delete it")
        page.get_by_text("keyboard · tester is deleted: 2 items").wait_for()
        assert agent not in {one.agent for one in client.agents()}
    finally:
        if next(one for one in client.models() if one.serving).version != before.version:
            client.rollback_model()
        store.remove(version)


def test_make_a_collection_fill_search_and_delete_it(
    console: ConsolePage, client: Client, tmp_path: Path
) -> None:
    page, keyboard = console.page, console.page.keyboard
    files = [tmp_path / "chains.md", tmp_path / "bells.md"]
    files[0].write_text("# Chains\n\nOil the chain every 200 kilometres.\n", encoding="utf-8")
    files[1].write_text("# Bells\n\nRing the bell before a corner.\n", encoding="utf-8")
    go_to(console, "Collections", "Collections")
    console.press("New collection…")
    write(console, "Name a-z, 0-9, - and _, beginning with a letter or digit", "by-keyboard")
    keyboard.press("Enter")
    page.get_by_role("heading", name="by-keyboard").wait_for()
    with page.expect_file_chooser() as chooser:
        console.press("Choose files…")
    chooser.value.set_files(files)
    console.reach(page.get_by_label("whom each file names, else its first folder"))
    keyboard.press("ArrowDown")
    write(console, "Provider", "Acme Works")
    console.press("Look at them first")
    page.get_by_role("button", name="Add 2 passages to by-keyboard").wait_for()
    console.press("Add 2 passages to by-keyboard")
    page.get_by_text("2 passages added.").wait_for()
    write(console, "Search this collection", "bell before a corner")
    keyboard.press("Enter")
    page.get_by_text("best, by").wait_for()
    console.reach(page.locator(".passage").first)
    keyboard.press("Enter")
    assert "Ring the bell" in page.locator("dialog[open] .text").inner_text()
    console.press("Look")
    page.get_by_text("retrievers find it.").wait_for()
    keyboard.press("Escape")
    console.press("Delete…")
    write(console, "Type the name of the collection to go on", "by-keyboard")
    console.press("Delete it")
    page.get_by_role("button", name="by-keyboard").wait_for(state="detached")
    assert "by-keyboard" not in [one.name for one in client.collections()]
