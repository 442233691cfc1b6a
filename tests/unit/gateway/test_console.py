"""The console: its files and headers, who may see what, and streams that break, in Chromium."""

from __future__ import annotations

import gzip
import time
from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
import pytest_asyncio

from evenmesh.common.v1 import common_pb2
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as orchestrator_pb
from evenmesh.wire.errors import NotFound, Unavailable
from evenmesh_gateway.console.assets import read
from evenmesh_kit.security.keys import KeyEntry, add_entry, new_key
from tests.support.oidc_server import OidcServer
from tests.support.programs import required
from tests.support.prometheus import running
from tests.support.scripted import ScriptedMesh, answered
from tests.unit.gateway.conftest import Open, opening

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

pytestmark = pytest.mark.asyncio(loop_scope="module")  # in which one driver of Playwright serves all tests

FIRST_LOAD = 300_000
SCRIPT = "<script>window.taken = 1</script><b>oil</b>"


@pytest_asyncio.fixture(loop_scope="module")
async def open_gateway(scripted: ScriptedMesh, tmp_path: Path) -> AsyncIterator[Open]:
    """Starts a gateway with further settings, and gives a client of it."""
    async with opening(scripted, tmp_path) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def gateway(open_gateway: Open) -> httpx.AsyncClient:
    """A client of a gateway."""
    return await open_gateway()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """A Chromium that the tests of this file share, each with a context of its own."""
    playwright_api = pytest.importorskip("playwright.async_api")
    path = required("chromium")
    async with playwright_api.async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="module")
async def page(scripted: ScriptedMesh, browser: Browser) -> AsyncIterator[Page]:
    """A page of Chromium; the scripted mesh has one collection."""
    scripted.collections.kept["demo"] = [common_pb2.Passage(id="p1", text="x")]
    async with await browser.new_context() as context:
        yield await context.new_page()


def key_of(folder: Path, *roles: str) -> str:
    key, digest = new_key()
    add_entry(folder / "k.toml", KeyEntry(name="ann", sha256=digest, tenant="acme", roles=list(roles)))
    return key


async def test_the_first_load_is_small_and_every_file_keeps_to_its_origin(gateway: httpx.AsyncClient) -> None:
    files = read()
    assert sum(len(one.compressed) for one in files.values()) <= FIRST_LOAD
    for name in files:
        found = await gateway.get(f"/console/{name}")
        assert found.content == files[name].body
        policy = found.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert found.headers["x-content-type-options"] == "nosniff"
        again = await gateway.get(f"/console/{name}", headers={"if-none-match": found.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


async def test_the_page_has_no_script_of_its_own(gateway: httpx.AsyncClient) -> None:
    page = (await gateway.get("/console/")).text
    assert page.count("<script") == page.count('<script type="module" crossorigin src="./assets/') == 1
    assert "style=" not in page
    assert "http" not in page


async def test_files_come_compressed_to_those_who_say_so(gateway: httpx.AsyncClient) -> None:
    name = next(name for name in read() if name.endswith(".js"))
    async with gateway.stream("GET", f"/console/{name}", headers={"accept-encoding": "gzip"}) as found:
        raw = b"".join([part async for part in found.aiter_raw()])
    assert found.headers["content-encoding"] == "gzip"
    assert gzip.decompress(raw) == read()[name].body
    assert "immutable" in found.headers["cache-control"]


@pytest.mark.parametrize("path", ["/", "/console"])
async def test_short_addresses_lead_to_it(gateway: httpx.AsyncClient, path: str) -> None:
    found = await gateway.get(path)
    assert (found.status_code, found.headers["location"]) == (307, "/console/")


@pytest.mark.parametrize("path", ["nothing.js", "..%2f..%2fapp.py", "assets/", "../settings.py"])
async def test_there_are_no_other_files(gateway: httpx.AsyncClient, path: str) -> None:
    assert (await gateway.get(f"/console/{path}")).status_code == 404


async def test_it_can_be_left_out(open_gateway: Open) -> None:
    client = await open_gateway(console=False)
    assert (await client.get("/console/")).status_code == 404


async def test_a_session_has_the_roles_of_the_key(open_gateway: Open, tmp_path: Path) -> None:
    key = key_of(tmp_path, "ask", "ingest")
    client = await open_gateway(api_keys=tmp_path / "k.toml")
    mine = {"authorization": f"Bearer {key}"}
    found = await client.get("/console/session", headers=mine)
    said = {
        "known": True,
        "name": "ann",
        "tenant": "acme",
        "roles": ["ask", "ingest"],
        "documents": True,
        "traces": "",
    }
    assert found.json() == said
    assert found.headers["cache-control"] == "no-store"
    for path in ("session", "health"):
        assert (await client.get(f"/console/{path}")).status_code == 401
        assert (
            await client.get(f"/console/{path}", headers={"authorization": "Bearer x"})
        ).status_code == 401


async def test_a_session_says_whether_documents_are_taken(open_gateway: Open) -> None:
    client = await open_gateway(documents=False)
    assert (await client.get("/console/session")).json()["documents"] is False


async def test_without_keys_everything_is_offered(gateway: httpx.AsyncClient) -> None:
    found = (await gateway.get("/console/session")).json()
    assert found["known"] is False
    assert {"ask", "ingest", "train", "feedback", "provider", "admin"} == set(found["roles"])


async def test_health_is_what_each_service_says(open_gateway: Open) -> None:
    client = await open_gateway(generator_target="127.0.0.1:1")
    found = {one["name"]: one["state"] for one in (await client.get("/console/health")).json()["services"]}
    assert found["orchestrator"] == "serving"
    assert found["generator"] == "unreachable"


_RULES = """
groups:
  - name: test
    rules:
      - {record: evenmesh_admission_waiting, expr: vector(3), labels: {service_name: generator, unit: tokens}}
      - {record: evenmesh_admission_capacity, expr: vector(9), labels: {service_name: generator, unit: tokens}}
      - alert: EvenmeshTest
        expr: vector(1)
        labels: {severity: critical}
        annotations: {summary: "<b>Something</b> is wrong"}
"""


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[str]:
    """The address of a Prometheus that has a queue and an alert."""
    folder = tmp_path / "prometheus"
    folder.mkdir()
    rules = folder / "rules.yaml"
    rules.write_text(_RULES)
    with running(folder, {}, [rules]) as found:
        while not found.query("evenmesh_admission_capacity") or not found.query("ALERTS"):
            time.sleep(0.1)
        yield found.address


async def test_admins_see_queues_and_alerts_and_nobody_else(
    open_gateway: Open, tmp_path: Path, page, prometheus: str
) -> None:
    admin, asks = key_of(tmp_path, "admin"), key_of(tmp_path, "ask")
    client = await open_gateway(api_keys=tmp_path / "k.toml", prometheus=f"http://{prometheus}/")
    found = await client.get("/console/health", headers={"authorization": f"Bearer {asks}"})
    assert found.json()["monitoring"] is None
    await page.goto(f"{client.base_url}/console/#/health")
    await page.get_by_label("API key or token").fill(admin)
    await page.get_by_role("button", name="Sign in").click()
    await page.locator("[data-alert=EvenmeshTest]").wait_for()
    assert "<b>Something</b> is wrong" in await page.locator("[data-alert=EvenmeshTest]").inner_text()
    cells = await page.locator("[data-queue=generator] > *").all_inner_texts()
    assert cells == ["generator", "tokens", "3", "–", "9"]


async def test_a_prometheus_that_is_away_is_said_and_no_more(open_gateway: Open, page) -> None:
    client = await open_gateway(prometheus="http://127.0.0.1:1")
    await page.goto(f"{client.base_url}/console/#/health")
    await page.get_by_text("Prometheus does not answer").wait_for()
    assert await page.locator(".tile").count() == 5


async def test_health_shows_the_time_of_each_step_and_what_degraded(gateway: httpx.AsyncClient, page) -> None:
    await page.goto(f"{gateway.base_url}/console/#/health")
    await page.get_by_role("heading", name="The last hour").wait_for()
    times = await page.locator(".times-table tbody tr").all_inner_texts()
    assert ["".join(one.split()) for one in times] == ["writetheanswer80ms"]
    assert await page.get_by_text("rank them again: BUDGET_EXCEEDED, 1 times").count() == 1


async def test_an_ask_leads_to_its_trace(open_gateway: Open, scripted: ScriptedMesh, page) -> None:
    client = await open_gateway(traces="https://traces.example.com/of/{trace_id}?view=1")
    sent: list[str] = []
    page.on("request", lambda one: sent.append(one.headers.get("traceparent", "")))
    await page.goto(f"{client.base_url}/console/")
    await page.get_by_label("Question", exact=True).fill("How often?")
    await page.get_by_role("button", name="Ask", exact=True).click()
    await page.get_by_text("Where the time went").wait_for()
    (trace,) = {one.split("-")[1] for one in sent if one}
    address = await page.get_by_role("link", name="its trace").get_attribute("href")
    assert address == f"https://traces.example.com/of/{trace}?view=1"


async def test_a_key_opens_what_its_roles_allow(open_gateway: Open, tmp_path: Path, page) -> None:
    asks, gives = key_of(tmp_path, "ask"), key_of(tmp_path, "feedback")
    client = await open_gateway(api_keys=tmp_path / "k.toml")
    await page.goto(f"{client.base_url}/console/")
    await page.get_by_label("API key or token").fill("emk_guessed")
    await page.get_by_role("button", name="Sign in").click()
    await page.get_by_text("This key is not known here").wait_for()
    await page.get_by_label("API key or token").fill(asks)
    await page.get_by_role("button", name="Sign in").click()
    await page.get_by_label("Question", exact=True).wait_for()
    assert await page.locator("nav[aria-label=Pages] a").all_inner_texts() == [
        "Ask",
        "Talk",
        "Vote",
        "Collections",
        "Runs",
        "Audits",
        "Statements",
        "Health",
    ]
    assert asks not in page.url
    assert (
        await page.evaluate("JSON.stringify(localStorage) + JSON.stringify(sessionStorage)")
        == '{"evenmesh-theme":"auto"}{}'
    )
    await page.reload()  # the key was kept nowhere
    await page.get_by_label("API key or token").fill(gives)
    await page.get_by_label("keep it until this tab is closed").check()
    await page.get_by_role("button", name="Sign in").click()
    await page.get_by_role("heading", name="Agents and models").wait_for()
    assert await page.locator("nav[aria-label=Pages] a").all_inner_texts() == ["Agents", "Health"]
    await page.reload()
    await page.get_by_role("button", name="Sign out ann").click()
    await page.get_by_text("This mesh wants to know who you are").wait_for()
    assert await page.evaluate("JSON.stringify(sessionStorage)") == "{}"


@pytest.fixture
def issuer() -> Iterator[OidcServer]:
    with OidcServer("console", "evenmesh") as issuer:
        yield issuer


async def signing_in(open_gateway: Open, issuer: OidcServer) -> httpx.AsyncClient:
    """Return a client of a gateway that knows callers by tokens of an issuer, which knows its console."""
    client = await open_gateway(
        oidc_issuer=issuer.url,
        oidc_client_id="console",
        jwks=f"{issuer.url}/jwks",
        jwt_audience="evenmesh",
        jwt_issuer=issuer.url,
    )
    issuer.redirects.append(f"{client.base_url}/console/")
    return client


async def let_in(page, name: str = "ann") -> None:
    """Say at the issuer who one is."""
    await page.get_by_label("Name").fill(name)
    await page.get_by_role("button", name="Let me in").click()


async def test_the_page_may_call_the_issuer_and_nobody_else(open_gateway: Open, issuer: OidcServer) -> None:
    client = await signing_in(open_gateway, issuer)
    policy = (await client.get("/console/")).headers["content-security-policy"]
    assert f"; connect-src 'self' {issuer.url}; " in policy
    assert policy.count("http") == 1
    said = {"issuer": issuer.url, "clientId": "console", "scopes": "openid", "audience": ""}
    assert (await client.get("/console/sign-in")).json() == {"provider": said}


async def test_people_sign_in_with_an_issuer(open_gateway: Open, issuer: OidcServer, page) -> None:
    client = await signing_in(open_gateway, issuer)
    where = f"{client.base_url}/console/#/vote"
    await page.goto(where)
    await page.get_by_role("button", name="Sign in with 127.0.0.1").press("Enter")
    await page.get_by_role("button", name="No").click()
    await page.get_by_text("The sign-in did not work").wait_for()
    await page.get_by_role("button", name="Sign in with 127.0.0.1").click()
    await let_in(page)
    await page.get_by_role("heading", name="Vote, and watch it tip").wait_for()
    await page.get_by_role("button", name="Sign out ann").wait_for()
    assert page.url == where, "back where one was, and neither code nor state stays in the address"
    assert await page.evaluate("JSON.stringify(sessionStorage)") == "{}"
    assert issuer.granted == ["authorization_code"]
    # An answer that nobody here asked for signs nobody in.
    await page.goto(f"{client.base_url}/console/?code=taken&state=forged")
    await page.get_by_text("The sign-in goes on in the window that began it").wait_for()
    assert issuer.granted == ["authorization_code"]


async def test_an_expired_token_is_renewed_in_a_window_and_nothing_typed_is_lost(
    open_gateway: Open, issuer: OidcServer, page, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await signing_in(open_gateway, issuer)
    await page.goto(f"{client.base_url}/console/")
    await page.get_by_role("button", name="Sign in with 127.0.0.1").click()
    await let_in(page)
    question = page.get_by_label("Question", exact=True)
    await question.fill("How often, and why?")

    def later(hours: int) -> None:
        """Move the gateway's clock on, and give tokens that last until then and two hours longer."""

        class Later(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
                return datetime.now(tz) + timedelta(hours=hours)

        monkeypatch.setattr("jwt.api_jwt.datetime", Later)
        issuer.lifetime_s = (hours + 2) * 3600

    later(hours=2)
    await page.get_by_role("button", name="Ask", exact=True).click()
    again = page.get_by_role("dialog", name="Please sign in again")
    await again.wait_for()
    await page.keyboard.press("Escape")
    assert await again.is_visible(), "there is nothing to do before"
    async with page.context.expect_page() as opened:
        await again.get_by_role("button", name="Sign in with 127.0.0.1").press("Enter")
    await let_in(await opened.value)
    await again.wait_for(state="detached")
    assert await question.input_value() == "How often, and why?"
    await page.get_by_role("button", name="Ask", exact=True).click()
    await page.get_by_text("Where the time went").wait_for()
    assert issuer.granted == ["authorization_code"] * 2

    # Somebody else who signs in gets pages of their own.
    later(hours=24)
    await page.get_by_role("button", name="Ask", exact=True).click()
    async with page.context.expect_page() as opened:
        await again.get_by_role("button", name="Sign in with 127.0.0.1").click()
    await let_in(await opened.value, "ben")
    await page.get_by_role("button", name="Sign out ben").wait_for()
    assert await question.input_value() == ""
    assert await page.locator(".result").count() == 0


async def test_a_token_is_refreshed_before_it_expires(open_gateway: Open, issuer: OidcServer, page) -> None:
    issuer.refreshes, issuer.lifetime_s = True, 2.0
    client = await signing_in(open_gateway, issuer)
    await page.goto(f"{client.base_url}/console/")
    await page.get_by_role("button", name="Sign in with 127.0.0.1").click()
    await let_in(page)
    for _ in range(400):
        if len(issuer.granted) > 2:
            break
        await page.wait_for_timeout(50)
    assert issuer.granted[:3] == ["authorization_code", "refresh_token", "refresh_token"]
    await page.get_by_label("Question", exact=True).fill("How often?")
    await page.get_by_role("button", name="Ask", exact=True).click()
    await page.get_by_text("Where the time went").wait_for()


async def test_a_stream_that_breaks_keeps_what_came_and_can_be_asked_again(
    open_gateway: Open, scripted: ScriptedMesh, page
) -> None:
    client = await open_gateway()
    scripted.orchestrator.error = Unavailable("UPSTREAM_UNAVAILABLE", "the generator is away")
    await page.goto(f"{client.base_url}/console/")
    await page.get_by_label("Question", exact=True).fill("How often?")
    await page.get_by_role("button", name="Ask", exact=True).click()
    await page.locator(".result .problem").get_by_text("the generator is away").wait_for()
    assert await page.locator(".said").inner_text() == "every 200 kilometres"
    assert await page.locator("[data-disparity]").count() == 1
    scripted.orchestrator.error = None
    await page.locator(".result").get_by_role("button", name="Try again").click()
    await page.get_by_text("Where the time went").wait_for()
    assert await page.locator(".result .problem").count() == 0
    await page.get_by_text("the retriever's order was used").wait_for()


async def test_stop_ends_the_ask_in_the_mesh(open_gateway: Open, scripted: ScriptedMesh, page) -> None:
    client = await open_gateway()
    scripted.orchestrator.events = scripted.orchestrator.events[:4]
    scripted.orchestrator.hang = True
    await page.goto(f"{client.base_url}/console/")
    await page.get_by_label("Question", exact=True).fill("How often?")
    await page.get_by_role("button", name="Ask", exact=True).click()
    await page.locator(".said").get_by_text("every 200 kilometres").wait_for()
    await page.locator(".result").get_by_role("button", name="Stop").click()
    await page.locator(".result").get_by_role("button", name="Stop").wait_for(state="detached")
    for _ in range(200):
        if scripted.orchestrator.cancelled.is_set():
            break
        await page.wait_for_timeout(50)
    assert scripted.orchestrator.cancelled.is_set()


async def test_what_was_cut_or_left_out_is_said(open_gateway: Open, scripted: ScriptedMesh, page) -> None:
    client = await open_gateway()
    events = scripted.orchestrator.events
    scripted.orchestrator.events = [*events[:4], answered(dropped=2, cut=3), *events[5:]]
    await page.goto(f"{client.base_url}/console/")
    await page.get_by_label("Question", exact=True).fill("How often?")
    await page.get_by_role("button", name="Ask", exact=True).click()
    await page.get_by_text("2 passages did not fit; 3 passages were cut.").wait_for()
    await page.get_by_text("the retriever's order was used").wait_for()
    ranked = await page.locator("ol.given .link").all_inner_texts()
    assert ranked == ["Oil it", "Wipe it"], "in the order in which the model was given them"


async def test_an_answer_is_text_whatever_it_holds(open_gateway: Open, scripted: ScriptedMesh, page) -> None:
    client = await open_gateway()
    first = scripted.orchestrator.events[:2]
    delta = orchestrator_pb.AskResponse(delta=orchestrator_pb.Delta(text=SCRIPT))
    scripted.orchestrator.events = [*first, delta, scripted.orchestrator.events[-1]]
    await page.goto(f"{client.base_url}/console/")
    await page.get_by_label("Question", exact=True).fill("كم مرة؟ " * 300)
    await page.get_by_role("button", name="Ask", exact=True).click()
    await page.get_by_text("Where the time went").wait_for()
    assert await page.locator(".said").inner_text() == SCRIPT
    assert await page.evaluate("window.taken") is None


async def test_a_turn_that_breaks_is_taken_again(open_gateway: Open, scripted: ScriptedMesh, page) -> None:
    client = await open_gateway()
    scripted.orchestrator.error = Unavailable("UPSTREAM_UNAVAILABLE", "the generator is away")
    await page.goto(f"{client.base_url}/console/#/talk")
    await page.get_by_label("Your turn", exact=True).fill(SCRIPT)
    await page.get_by_role("button", name="Say it").click()
    await page.locator(".reply .problem").get_by_text("the generator is away").wait_for()
    assert await page.locator(".said").inner_text() == "every 200 kilometres"
    assert (await page.locator(".asked").inner_text()).endswith(SCRIPT)
    assert await page.evaluate("window.taken") is None
    scripted.orchestrator.error = None
    await page.get_by_role("button", name="Try again").click()
    await page.get_by_role("button", name="Save the text").wait_for()
    # What came to nothing is gone; the mesh keeps no conversation without a turn, so another begins.
    assert await page.locator(".reply").count() == 1
    assert [one.conversation_id for one in scripted.orchestrator.turns] == ["", ""]

    # The mesh started again and lost the conversation: another begins with the same question.
    scripted.orchestrator.error = NotFound("conversation_id", "this server has no such conversation")
    await page.get_by_label("Your turn", exact=True).fill("And then?")
    await page.keyboard.press("Enter")
    await page.get_by_text("The mesh no longer holds this conversation").wait_for()
    scripted.orchestrator.error = None
    await page.get_by_role("button", name="Begin another with this question").click()
    await page.get_by_role("button", name="Save the text").wait_for()
    *_, before, last = scripted.orchestrator.turns
    assert [one.conversation_id for one in (before, last)] == ["talk", ""]
    assert last.ask.question == "And then?"

    scripted.orchestrator.hang = True
    scripted.orchestrator.events = scripted.orchestrator.events[:5]
    await page.get_by_label("Your turn", exact=True).fill("And then?")
    await page.keyboard.press("Enter")
    await page.locator(".reply .said").nth(1).get_by_text("every 200 kilometres").wait_for()
    await page.get_by_role("button", name="Stop").click()
    await page.get_by_role("button", name="Stop").wait_for(state="detached")
    for _ in range(200):
        if scripted.orchestrator.cancelled.is_set():
            break
        await page.wait_for_timeout(50)
    assert scripted.orchestrator.cancelled.is_set()


def vote_of(number: int, *, final: bool = False, may_change: bool = True) -> orchestrator_pb.AskResponse:
    """The vote of three members, of which ``number`` have answered; the last never does."""
    nan = float("nan")
    one = orchestrator_pb.VoteEvent(
        answer="oil",
        member="B@1",
        members=["A@1", "B@1", "C@1"],
        num_answers=number,
        num_missing=3 - number,
        may_change=may_change,
        final=final,
        scores=[0.25, 0.75, nan] if number == 2 else [nan] * 3,
        similarities=[nan, 0.5, nan, 0.5, *[nan] * 5] if number == 2 else [nan] * 9,
    )
    return orchestrator_pb.AskResponse(vote=one)


async def test_a_vote_says_when_it_was_decided_and_who_had_no_answer(
    open_gateway: Open, scripted: ScriptedMesh, page
) -> None:
    client = await open_gateway()
    ask = orchestrator_pb.AskResponse
    answers = [
        ask(answer=orchestrator_pb.AnswerEvent(answer={"text": text}, member=member))
        for member, text in (("B@1", SCRIPT), ("A@1", "wax"))
    ]
    failed = ask(failed=orchestrator_pb.AnswerFailed(member="C@1", error={"message": "it took too long"}))
    done = scripted.orchestrator.events[-1]
    scripted.orchestrator.events = [
        scripted.orchestrator.events[0],
        answers[0],
        vote_of(1),
        answers[1],
        vote_of(2, may_change=False),
        failed,
        vote_of(2, may_change=False, final=True),
        done,
    ]
    one = orchestrator_pb.ConfiguredEnsemble(name="three", members=["A@1", "B@1", "C@1"])
    scripted.orchestrator.ensembles = orchestrator_pb.ListEnsemblesResponse(ensembles=[one], sources=["PK"])
    await page.goto(f"{client.base_url}/console/#/vote")
    await page.get_by_label("Question", exact=True).fill("What?")
    await page.get_by_role("button", name="Let them vote").click()
    await page.get_by_text("B wins after 2 answers, 1 had no answer.").wait_for()
    assert scripted.orchestrator.requests[-1].ensemble == orchestrator_pb.Ensemble(name="three")
    assert await page.locator("[data-decided]").get_attribute("data-decided") == "2"
    await page.get_by_text("It was decided by answer 2 of 3").wait_for()
    await page.get_by_text("it took too long").wait_for()
    assert await page.locator("[data-member='B@1'] .voice").inner_text() == SCRIPT
    assert await page.evaluate("window.taken") is None
    await page.get_by_label("Answers counted").fill("0")
    await page.get_by_text("B leads after 1 of 3 answers; the others may still change it.").wait_for()
    await page.get_by_text("answers later, as number 2").wait_for()

    # A service that dies in the middle: what came is still there, and the vote is asked for again.
    scripted.orchestrator.error = Unavailable("UPSTREAM_UNAVAILABLE", "the evaluator is away")
    await page.get_by_role("button", name="Let them vote").click()
    await page.locator(".vote .problem").get_by_text("the evaluator is away").wait_for()
    assert await page.locator("[data-score]").count() == 2
    scripted.orchestrator.error = None
    await page.get_by_role("button", name="Try again").click()
    await page.locator(".vote .problem").wait_for(state="detached")
    await page.get_by_text("B wins after").wait_for()

    scripted.orchestrator.events = scripted.orchestrator.events[:3]
    scripted.orchestrator.hang = True
    await page.get_by_role("button", name="Let them vote").click()
    await page.get_by_text("B leads after 1 of 3").wait_for()
    await page.get_by_role("button", name="Stop").click()
    await page.get_by_text("Stopped.").wait_for()
    for _ in range(200):
        if scripted.orchestrator.cancelled.is_set():
            break
        await page.wait_for_timeout(50)
    assert scripted.orchestrator.cancelled.is_set()


async def test_a_mesh_without_sources_says_how_to_have_some(gateway: httpx.AsyncClient, page) -> None:
    await page.goto(f"{gateway.base_url}/console/#/vote")
    await page.get_by_text("There is nothing to vote with yet").wait_for()
