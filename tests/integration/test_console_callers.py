"""Who sees what in the console: tenants and roles before real services, in Chromium."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import grpc
import pytest

from evenmesh import Addresses, Client, Passage
from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.evaluator.v1.evaluator_service_pb2_grpc import EvaluatorServiceStub
from evenmesh_kit.security.caller import Role
from evenmesh_kit.security.keys import KeyEntry, add_entry, new_key
from tests.support.console_page import WIDE, ConsolePage, chromium
from tests.support.gateway_process import GatewayProcess
from tests.support.killable import Killable, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(600)]

CALLERS: Mapping[str, tuple[str, tuple[Role, ...]]] = {
    "ann": ("acme", (Role.ASK, Role.INGEST)),
    "ben": ("bolt", (Role.ASK,)),
}
"""Tenant and roles of each."""
_KEPT_BY_THE_FIRST_VERSION = """([whose, id, name]) => new Promise((resolve, reject) => {
  const opening = indexedDB.open("evenmesh-audits", 1);
  opening.onupgradeneeded = () => {
    opening.result.createObjectStore("audits", {keyPath: "id"}).createIndex("whose", "whose");
    opening.result.createObjectStore("outcomes");
    opening.result.createObjectStore("records");
  };
  opening.onerror = () => reject(opening.error);
  opening.onsuccess = () => {
    const plan = {
      name, collection: "acme-notes", retriever: "bm25-lucene", reranker: "none", model: "", k: 1, depth: 2,
      alphas: [1], samples: 1, answers: false, metric: 1, createdAt: 1,
      questions: [{id: "q1", question: "What?", references: []}],
    };
    const change = opening.result.transaction("audits", "readwrite");
    change.objectStore("audits").put({id, whose, plan, budget: 0, state: "stopped"});
    change.oncomplete = () => { opening.result.close(); resolve(); };
  };
})"""
"""An audit as the console kept it when an audit had one retriever and one model."""


class Served:
    """A gateway of two tenants."""

    def __init__(self, url: str, keys: Mapping[str, str]) -> None:
        self.url = url
        self.keys = keys


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A retriever, an evaluator and a gateway that know two callers, each of whom has a collection and a run."""
    home = tmp_path_factory.mktemp("callers")
    keys = {}
    for name, (tenant, roles) in CALLERS.items():
        keys[name], digest = new_key()
        add_entry(
            home / "keys.toml", KeyEntry(name=name, sha256=digest, tenant=tenant, roles=frozenset(roles))
        )
    writer, digest = new_key()
    add_entry(
        home / "keys.toml",
        KeyEntry(name="writer", sha256=digest, tenant="bolt", roles=frozenset({Role.INGEST})),
    )
    known = {"EVENMESH_API_KEYS": str(home / "keys.toml")}
    retriever = Killable("evenmesh_retriever", "retriever", home).also(**known)
    evaluator = Killable("evenmesh_evaluator", "evaluator", home).also(**known)
    with serving(retriever, evaluator), ExitStack() as stack:
        nobody = "127.0.0.1:1"
        addresses = Addresses(
            orchestrator=nobody,
            retriever=retriever.address,
            reranker=nobody,
            generator=nobody,
            evaluator=evaluator.address,
        )
        with pytest.MonkeyPatch.context() as patch:
            for tenant, key in (("acme", keys["ann"]), ("bolt", writer)):
                patch.setenv("EVENMESH_API_KEY", key)
                with Client(addresses, timeout=120) as client:
                    passage = Passage(
                        id="p1", title=f"Of {tenant}", text="Text", attributes={"provider": tenant}
                    )
                    client.ingest([passage], f"{tenant}-notes")
        for name in CALLERS:
            _observe(evaluator.address, keys[name], f"{CALLERS[name][0]}-run")
        yield Served(stack.enter_context(GatewayProcess(home, addresses, **known)).url, keys)


def _observe(address: str, key: str, run: str) -> None:
    message = pb.Observation(id=f"o-{run}", run_id=run, query_id="q", collection="notes")
    message.candidates.add(passage_id="p1", provider="p")
    message.shown.depth = 1
    message.shown.indices.append(0)
    message.observed_at.GetCurrentTime()
    with grpc.insecure_channel(address) as channel:
        replies = EvaluatorServiceStub(channel).Observe(
            iter([pb.ObserveRequest(observation=message)]),
            timeout=60,
            metadata=(("authorization", f"Bearer {key}"),),
        )
        assert [reply.HasField("ack") for reply in replies] == [True]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The browser, of which each test has a context of its own."""
    with chromium() as browser:
        yield browser


@pytest.fixture
def console(browser: Browser, served: Served) -> Iterator[ConsolePage]:
    """The console before anybody signed in."""
    with browser.new_context(viewport=WIDE) as context:
        console = ConsolePage(context.new_page(), served.url)
        console.open("collections")
        yield console
        assert console.strangers == []
        assert console.complaints == []


def sign_in(console: ConsolePage, served: Served, name: str) -> None:
    """Sign in by the keyboard."""
    console.reach(console.page.get_by_label("API key or token"))
    console.page.keyboard.type(served.keys[name])
    console.page.keyboard.press("Enter")
    console.page.get_by_role("button", name=f"Sign out {name}").wait_for()


def test_tenants_see_their_own_collections_and_runs(console: ConsolePage, served: Served) -> None:
    page = console.page
    assert console.is_readable(), "the form to sign in"
    for name, other in (("ann", "bolt"), ("ben", "acme")):
        sign_in(console, served, name)
        tenant = CALLERS[name][0]
        console.open("collections")
        page.get_by_role("button", name=f"{tenant}-notes").wait_for()
        page.get_by_role("button", name=f"Of {tenant}").wait_for()
        assert other not in page.locator("main").inner_text()
        console.open("runs")
        page.get_by_role("heading", name=f"{tenant}-run").wait_for()
        assert other not in page.locator("main").inner_text()
        console.press(f"Sign out {name}")
        page.get_by_label("API key or token").wait_for()


def test_what_a_role_may_not_do_is_not_on_the_page(console: ConsolePage, served: Served) -> None:
    page = console.page
    writes = ("New collection…", "Delete…", "Add documents")
    sign_in(console, served, "ann")
    page.get_by_role("heading", name="acme-notes").wait_for()
    for words in writes:
        assert page.get_by_text(words, exact=True).first.is_visible()
    page.get_by_role("button", name="Of acme").click()
    assert page.get_by_role("button", name="Delete this passage…").count() == 1
    page.keyboard.press("Escape")
    console.press("Sign out ann")
    sign_in(console, served, "ben")
    page.get_by_role("heading", name="bolt-notes").wait_for()
    for words in writes:
        assert page.get_by_text(words, exact=True).count() == 0
    page.get_by_role("button", name="Of bolt").click()
    page.get_by_role("heading", name="Who finds it").wait_for()
    assert page.get_by_role("button", name="Delete this passage…").count() == 0
    page.keyboard.press("Escape")
    assert page.get_by_label("Pages").get_by_role("link", name="Agents").count() == 0
    # The address of a page that is not there leads to the first that is.
    console.open("agents")
    page.get_by_role("heading", name="Ask, and see who is shown").wait_for()


def test_audits_that_the_browser_keeps_are_of_who_began_them(console: ConsolePage, served: Served) -> None:
    from playwright.sync_api import Error

    page = console.page
    for name in CALLERS:
        whose = f'["{CALLERS[name][0]}","{name}"]'
        page.evaluate(_KEPT_BY_THE_FIRST_VERSION, [whose, f"audit-of-{name}", f"Audit of {name}"])
    for name, other in (("ann", "ben"), ("ben", "ann")):
        sign_in(console, served, name)
        console.open("audits")
        page.get_by_role("heading", name=f"Audit of {name}").wait_for()
        assert page.get_by_role("button", name=f"Audit of {other}").count() == 0
        page.get_by_text("What is asked").click()
        assert "bm25-lucene" in page.locator(".facts").inner_text()
        console.press(f"Sign out {name}")

    # An audit under way stops with its caller, and does not go on with the key of the next one.
    held: list[Route] = []
    page.route("**/*OrchestratorService/Audit", lambda route: held.append(route))
    sign_in(console, served, "ann")
    console.open("audits")
    console.press("Go on")
    while not held:
        page.wait_for_timeout(50)
    console.press("Sign out ann")
    sign_in(console, served, "ben")
    with suppress(Error):  # the page no longer waits for it
        held[0].abort()
    page.wait_for_timeout(2_000)  # more than the pause before an audit asks again
    assert len(held) == 1
    console.press("Sign out ben")
    sign_in(console, served, "ann")
    console.open("audits")
    page.locator("[data-audit=stopped]").wait_for()
