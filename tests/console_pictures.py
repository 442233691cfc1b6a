"""Take the pictures of the guide to the console: ``make console-pictures``.

A mesh of its own asks the demo's questions at two settings of the dial, so that there are runs to show. The browser
is the one of the tests, and so are the steps.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from evenmesh import Addresses, Agent, Client, Feedback
from evenmesh.statements import new_key
from evenmesh_mesh import GeneratorEngine, MeshSettings, launch, services_with, stop
from evenmesh_studies import demo
from tests.support import document_files
from tests.support.console_page import ConsolePage, chromium

if TYPE_CHECKING:
    from playwright.sync_api import ViewportSize

OUT: Final = Path(__file__).parents[1] / "docs" / "assets" / "console"
QUESTION: Final = "How often should I oil my chain?"
EVEN_STOP: Final = 2
VOTED: Final = "What torque should I use for the bolts on my handlebar stem?"
"""A question on which the members differ."""
MEMBERS: Final = ("Words@1", "Meaning@1", "Words@RR@1", "Meaning@RR@2", "Words@5")
SOURCES: Final = {
    "Words": {"collection": "demo", "retriever": "bm25-lucene"},
    "Meaning": {"collection": "demo", "retriever": "dense"},
}
RETRIEVERS: Final = ("bm25-lucene", "dense")
"""What the audit compares."""
AGENTS: Final = {"qa": 1.0, "summaries": 0.8}
"""Tasks of the agents that give feedback, and how useful a useful passage is to each."""
PROVIDER: Final = "Ask Aunt Sprocket"
"""Whose statement is shown."""
WIDE: Final[ViewportSize] = {"width": 1180, "height": 900}
PHONE: Final[ViewportSize] = {"width": 390, "height": 844}


def fill(client: Client) -> None:
    """Ask the demo's questions, so that runs have something to show."""
    for alpha, run in ((8.0, "by-score"), (1.0, "more-even")):
        for one in demo.questions():
            client.answer(
                one.question,
                collection="demo",
                alpha=alpha,
                samples=8,
                num_answers=2,
                run_id=run,
                query_id=one.id,
                references=one.answers,
                useful=one.useful_passage_ids,
            )


def give_feedback(client: Client) -> None:
    """Record what the demo's labels say, for some agents."""
    for task, usefulness in AGENTS.items():
        agent = Agent(task, "evenmesh-pointer")
        client.register_agent(agent, "answers questions" if task == "qa" else "sums up what was found")
        client.record_feedback(
            [
                Feedback(
                    one.question,
                    passage.id,
                    usefulness if passage.id in one.useful_passage_ids else 0.0,
                    agent,
                )
                for one in demo.questions()[:20]
                for passage in client.retrieve(one.question, collection="demo", depth=8, k=8).passages
            ]
        )


def write_documents(folder: Path) -> Path:
    """Write some documents of two providers into a folder, one of them locked; return it."""
    contents = {
        "Acme Works/brakes.docx": document_files.word(
            [
                ("Heading 1", "Brakes"),
                ("Normal", "Check the pads."),
                ("Heading 1", "Cables"),
                ("Normal", "Oil them."),
            ]
        ),
        "Acme Works/chains.md": b"# Chains\n\nOil the chain every 200 kilometres.\n\n## Wear\n\nReplace it.\n",
        "Bell Company/locked.pdf": document_files.pdf([[(11, "x")]], encrypted=True),
        "Bell Company/manual.pdf": document_files.pdf([[(11, "Ring the bell before a corner.")]]),
    }
    for name, data in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def take(url: str, out: Path) -> None:
    """Walk through the console and save the pictures."""
    with chromium() as browser:
        console = ConsolePage(browser.new_page(viewport=WIDE, reduced_motion="reduce"), url)
        console.open("ask")
        console.ask(QUESTION)
        console.page.get_by_text("Where the time went").wait_for()
        console.picture(out / "ask.png", height=840)
        console.turn(EVEN_STOP)
        console.page.get_by_label(f"useful: {QUESTION}").first.check()
        console.page.locator(".dial .line.relevance").wait_for()
        console.page.set_viewport_size(WIDE)
        console.picture(out / "dial.png", ".dial")
        console.page.emulate_media(color_scheme="dark")
        console.page.get_by_label("beside the answer above").check()
        console.page.get_by_role("button", name="Answer with this").click()
        console.page.locator("[data-disparity]").nth(1).wait_for()
        console.page.get_by_text("Where the time went").nth(1).wait_for()
        console.picture(out / "beside-dark.png", ".results")
        console.page.emulate_media(color_scheme="light")
        console.page.set_viewport_size(WIDE)
        console.open("talk")
        console.page.get_by_text("How it is answered and measured").click()
        console.page.get_by_label("A turn is compared by").select_option("all sources so far")
        console.page.get_by_text("How it is answered and measured").click()
        for turn, words in enumerate(
            (QUESTION, "And how do I clean it?", "What pressure for road tyres?"), start=1
        ):
            console.say(words, turn)
        console.picture(out / "talk.png", height=1100)
        console.page.set_viewport_size(WIDE)
        console.open("vote")
        console.vote(VOTED, *MEMBERS)
        console.page.set_viewport_size(WIDE)
        console.picture(out / "vote.png", ".vote")
        console.open("collections")
        console.page.locator(".passage").first.wait_for()
        console.picture(out / "collections.png", height=800)
        with tempfile.TemporaryDirectory() as folder:
            workshop = write_documents(Path(folder, "workshop"))
            console.page.set_viewport_size(WIDE)
            console.page.get_by_role("button", name="New collection…").click()
            console.page.get_by_role("textbox", name="Name").fill("workshop")
            console.page.get_by_role("button", name="Make it").click()
            console.page.get_by_role("heading", name="workshop").wait_for()
            console.page.locator("input[type=file]").nth(1).set_input_files(workshop)
            console.page.get_by_role("button", name="Look at them first").click()
            console.page.locator(".seen").wait_for()
            console.page.get_by_text("Not read: 1").click()
            console.picture(out / "upload.png", ".add")
        console.page.set_viewport_size(WIDE)
        console.open("runs")
        console.page.get_by_role("button", name="more-even").click()
        console.page.get_by_role("heading", name="more-even").wait_for()
        console.page.get_by_label("compare with").fill("by-score")
        console.page.keyboard.press("Tab")
        console.page.locator(".interval.lower").first.wait_for()
        console.page.locator(".ask-dot").first.wait_for(state="attached")
        console.picture(out / "runs.png", height=1000)
        console.page.locator(".asks .link").first.click()
        console.page.locator("dialog[open] .given").wait_for()
        console.page.set_viewport_size(WIDE)
        console.picture(out / "run-ask.png", "dialog[open] article")
        console.page.keyboard.press("Escape")
        console.open("audits")
        console.page.get_by_role("button", name="Try questions of the demo").click()
        console.page.get_by_label("Rankings of each dial").fill("12")
        console.page.get_by_text("How it is answered and scored").click()
        for retriever in RETRIEVERS:
            console.page.get_by_label(retriever, exact=True).check()
        console.page.get_by_role("button", name="See what it costs").click()
        console.page.locator(".cost").wait_for()
        console.page.get_by_role("button", name="Begin").click()
        console.page.locator("[data-audit=done]").wait_for(timeout=600_000)
        console.page.locator("[data-slope=relevance]").nth(len(RETRIEVERS) - 1).wait_for()
        console.picture(out / "audit.png", height=1200)
        console.page.set_viewport_size(WIDE)
        console.open("statements")
        console.page.get_by_label("Provider").fill(PROVIDER)
        console.page.get_by_role("button", name="Get the statement").click()
        console.page.locator("[data-configuration]").first.wait_for()
        console.picture(out / "statement.png", height=780)
        console.open("agents")
        console.page.locator(".version").first.wait_for()
        console.picture(out / "agents.png", height=900)
        console.open("health")
        console.page.get_by_role("heading", name="The last hour").wait_for()
        console.picture(out / "health.png", height=600)
        console.page.set_viewport_size(PHONE)
        console.open("ask")
        console.ask(QUESTION)
        console.turn(EVEN_STOP)
        console.page.evaluate("document.querySelector('.dial').scrollIntoView()")
        console.picture(out / "phone.png")


def main() -> None:
    """Start a mesh, or use the one of ``--url``, and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="address of a gateway whose mesh has been asked already")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.url:
        take(given.url, given.out)
        return
    with tempfile.TemporaryDirectory() as home:
        key = Path(home, "signing.pem")
        new_key(key)
        services = services_with(GeneratorEngine.IN_PROCESS, gateway=True)
        settings = MeshSettings(
            home=Path(home),
            port=0,
            start_s=600,
            services=services,
            environment={
                "EVENMESH_ORCHESTRATOR_SOURCES": json.dumps(SOURCES),
                "EVENMESH_EVALUATOR_STATEMENT_KEY": str(key),
            },
        )
        state = launch(settings)
        try:
            with Client(Addresses(**state.addresses)) as client:
                client.ingest(demo.passages(), "demo")
                client.until_embedded("demo")
                fill(client)
                give_feedback(client)
            take(f"http://{state.services['gateway'].address}", given.out)
        finally:
            stop(settings.home)


if __name__ == "__main__":
    main()
