"""Exposure statements of a real evaluator: who may read which, and what verification finds."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest

from evenmesh import Addresses, Client, MeshError
from evenmesh.addresses import VARIABLES
from evenmesh.commands import main
from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.evaluator.v1 import evaluator_service_pb2_grpc as pb_grpc
from evenmesh.statements import Expected, StatementError, new_key, parse, public_keys, read, verify
from evenmesh_kit.security import keys
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_orchestrator.clients import EvaluatorClient
from tests.integration.test_evaluator_service import _running
from tests.support.console_page import ConsolePage, chromium
from tests.support.gateway_process import GatewayProcess
from tests.support.started import refusal

OTHER = "Other Press"
PROVIDER = 'Acme "Press" & Söhne'


class Readers:
    """The addresses of an evaluator, and keys of who may read it."""

    def __init__(self, address: str, secrets: dict[str, str], public: Path) -> None:
        self.addresses = Addresses(orchestrator=address, evaluator=address)
        self.secrets = secrets
        self.public = public

    def client(self, monkeypatch: pytest.MonkeyPatch, who: str) -> Client:
        """A client with somebody's key."""
        monkeypatch.setenv("EVENMESH_API_KEY", self.secrets[who])
        return Client(self.addresses)


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Readers]:
    """An evaluator with twelve asks: one passage of each provider, the first of them shown and cited."""
    home = tmp_path_factory.mktemp("statements")
    _, public = new_key(home / "signing.pem")
    (home / "public.pem").write_text(public)
    secrets = {}
    for who, roles, provider in (
        ("asker", ["ask", "ingest"], ""),
        ("provider", ["provider"], PROVIDER),
        ("stranger", ["provider"], "Nobody"),
    ):
        secrets[who], digest = keys.new_key()
        entry = {"name": who, "sha256": digest, "tenant": "acme", "roles": roles, "provider": provider}
        keys.add_entry(home / "keys.toml", keys.KeyEntry.read(entry))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVENMESH_API_KEYS", str(home / "keys.toml"))
        patch.setenv("EVENMESH_API_KEY", secrets["asker"])
        with _running(home, STATEMENT_KEY=str(home / "signing.pem")) as evaluator:
            with grpc.insecure_channel(evaluator.address) as channel:
                call = pb_grpc.EvaluatorServiceStub(channel).Observe(
                    iter([pb.ObserveRequest(observation=_observation(number)) for number in range(12)]),
                    timeout=60,
                    metadata=[("authorization", f"Bearer {secrets['asker']}")],
                )
                assert sum(response.HasField("ack") for response in call) == 12
            yield Readers(evaluator.address, secrets, home / "public.pem")


def _observation(number: int) -> pb.Observation:
    message = pb.Observation(id=f"o{number}", run_id="r", query_id=f"q{number}", collection="zoo")
    message.candidates.add(passage_id="a", provider=PROVIDER, text="", merit_share=0.75)
    message.candidates.add(passage_id="b", provider=OTHER, merit_share=0.25)
    message.shown.depth = 1
    message.shown.indices.append(0)
    message.answers.add(text="a", samples=[0], cited=[0] if number % 2 else [])
    message.observed_at.GetCurrentTime()
    return message


def test_a_statement_says_what_was_found_shown_cited_and_deserved(
    readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with readers.client(monkeypatch, "provider") as mesh:
        signed = mesh.exposure_statement(nonce="n-1")
        assert mesh.exposure_statement(PROVIDER).payload_type == signed.payload_type
    today = datetime.now(UTC).date().isoformat()
    stated = verify(signed, public_keys([readers.public]), Expected(PROVIDER, "acme", None, None, "n-1"))
    (one,) = stated.configurations
    assert (one.num_found, one.num_shown, one.num_cited) == (12, 12, 6)
    assert (one.exposure.mean, one.target.mean, one.owed.mean) == (1.0, 0.75, -0.25)
    # 12 of −1/4, with −1 and 1: mean −3/14, s² = 2.107 / 13, t(0.975; 13) = 2.1604.
    assert [one.owed.low, one.owed.high] == pytest.approx([-3 / 14 - 0.2324, -3 / 14 + 0.2324], abs=1e-4)
    assert one.configuration.collection == "zoo"
    assert stated.last_day in (today, (datetime.now(UTC) - timedelta(days=1)).date().isoformat())
    assert (stated.num_left_out, stated.min_asks, stated.epsilon) == (0, 10, None)
    # No texts, no questions, no ids.
    assert b"q1" not in signed.payload


def test_another_providers_statement_is_not_found_as_if_there_was_none(
    readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = set()
    for who, provider in (("provider", OTHER), ("provider", "None"), ("stranger", None), ("asker", "None")):
        with readers.client(monkeypatch, who) as mesh, pytest.raises(MeshError) as caught:
            mesh.exposure_statement(provider)
        assert caught.value.code is grpc.StatusCode.NOT_FOUND
        said.add(caught.value.message)
    assert len(said) == 1
    with readers.client(monkeypatch, "asker") as mesh:
        assert read(mesh.exposure_statement(OTHER)).configurations[0].num_shown == 0


def test_a_provider_may_read_nothing_else(readers: Readers, monkeypatch: pytest.MonkeyPatch) -> None:
    with readers.client(monkeypatch, "provider") as mesh:
        for call in (mesh.runs, mesh.configurations, lambda: mesh.exposure_balance("zoo")):
            with pytest.raises(MeshError) as caught:
                call()
            assert caught.value.code is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"first_day": "2026-13-01"}, "first_day"),
        ({"last_day": "tomorrow"}, "last_day"),
        ({"last_day": "9999-12-31"}, "last_day"),
        ({"first_day": "1990-01-01"}, "first_day"),
        ({"nonce": "a b"}, "nonce"),
        ({"provider": "a\0b"}, "provider"),
        ({"provider": ""}, "provider"),
    ],
)
def test_requests_out_of_bounds_are_refused_by_field(
    readers: Readers, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], where: str
) -> None:
    with readers.client(monkeypatch, "asker") as mesh, pytest.raises(MeshError) as caught:
        mesh.exposure_statement(**{"provider": PROVIDER, **given})
    assert (caught.value.code, caught.value.field) == (grpc.StatusCode.INVALID_ARGUMENT, where)


def test_forged_changed_cut_and_replayed_statements_fail(
    readers: Readers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known = public_keys([readers.public])
    with readers.client(monkeypatch, "asker") as mesh:
        signed = mesh.exposure_statement(PROVIDER, nonce="mine")
        other = mesh.exposure_statement(OTHER, nonce="mine")
    text = signed.to_json()
    assert verify(parse(text), known).provider == PROVIDER
    assert verify(parse(json.dumps({"envelope": json.loads(text)})), known).provider == PROVIDER
    # Forged: more was shown, or another's signature, or a key that claims the name of the right one.
    changed = replace(signed, payload=signed.payload.replace(b'"numShown":"12"', b'"numShown":"99"'))
    assert changed != signed
    _, foreign = new_key(tmp_path / "foreign.pem")
    (tmp_path / "foreign-public.pem").write_text(foreign)
    foreign_keys = public_keys([tmp_path / "foreign-public.pem"])
    claimed = {signed.signatures[0].keyid: next(iter(foreign_keys.values()))}
    for forged, keys_ in (
        (changed, known),
        (replace(signed, signatures=other.signatures), known),
        (replace(signed, payload=signed.payload[:-1]), known),
        (replace(signed, signatures=(replace(signed.signatures[0], sig=b""),)), known),
        (signed, claimed),
    ):
        with pytest.raises(StatementError, match="forged, changed or cut"):
            verify(forged, keys_)
    with pytest.raises(StatementError, match="known key"):
        verify(signed, foreign_keys)
    with pytest.raises(StatementError, match="known key"):
        verify(replace(signed, signatures=()), known)
    with pytest.raises(StatementError, match="not of the type"):
        verify(replace(signed, payload_type="text/plain"), known)
    for cut in range(0, len(text), 97):
        with pytest.raises(StatementError):
            verify(parse(text[:cut]), known)
    # Replayed: another provider's, another window's, another request's, an old one, one of the future.
    for expected, where in (
        (Expected(provider=OTHER), "provider"),
        (Expected(tenant="other"), "tenant"),
        (Expected(first_day="2026-01-01"), "first_day"),
        (Expected(last_day="2026-01-01"), "last_day"),
        (Expected(nonce="yours"), "nonce"),
    ):
        with pytest.raises(StatementError, match=where):
            verify(signed, known, expected)
    later = datetime.now(UTC) + timedelta(hours=2)
    with pytest.raises(StatementError, match="too long ago"):
        verify(signed, known, Expected(max_age=timedelta(hours=1)), now=later)
    assert verify(signed, known, Expected(max_age=timedelta(hours=3)), now=later).nonce == "mine"
    with pytest.raises(StatementError, match="future"):
        verify(signed, known, now=datetime.now(UTC) - timedelta(hours=1))


def test_the_commands_get_verify_and_print_a_page(
    readers: Readers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLES["evaluator"], readers.addresses.evaluator or "")
    monkeypatch.setenv("EVENMESH_API_KEY", readers.secrets["provider"])
    file, page = tmp_path / "statement.json", tmp_path / "statement.html"
    assert main(["statement", "get", "-o", str(file), "--html", str(page), "--nonce", "n1"]) == 0
    assert "100.0% (77.4% to 100.0%)" in " ".join(capsys.readouterr().out.split())
    markup = page.read_text()
    assert "Acme &quot;Press&quot; &amp; Söhne" in markup
    assert "<script" not in markup
    # Rotation: a file may hold the public keys of before and after.
    _, following = new_key(tmp_path / "following.pem")
    both = tmp_path / "both.pem"
    both.write_text(following + readers.public.read_text())
    arguments = ["statement", "verify", str(file), "--keys", str(both), "--nonce", "n1", "--max-age", "1"]
    assert main(arguments) == 0
    assert "The signature is valid" in capsys.readouterr().out
    assert main([*arguments[:-3], "n2"]) == 1
    assert "nonce" in capsys.readouterr().err
    content = json.loads(file.read_text())
    content["payload"] = base64.b64encode(base64.b64decode(content["payload"])[:-2]).decode()
    file.write_text(json.dumps(content))
    assert main(arguments) == 1
    assert "forged, changed or cut" in capsys.readouterr().err


def test_the_balance_is_shown_and_forgotten(
    readers: Readers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with readers.client(monkeypatch, "asker") as mesh:
        found = {one.provider: one for one in mesh.exposure_balance("zoo", half_life_days=3650)}
        assert mesh.exposure_balance("other") == []
        assert found[PROVIDER].owed == pytest.approx(-3.0, rel=1e-3)
        assert found[OTHER].owed == pytest.approx(3.0, rel=1e-3)
        assert mesh.reset_exposure_balance("zoo") == 2
        assert mesh.exposure_balance("zoo") == []
        # Statements stay.
        assert read(mesh.exposure_statement(PROVIDER)).configurations[0].num_found == 12


def test_a_key_that_cannot_be_used_ends_the_start_in_one_line(tmp_path: Path) -> None:
    errors = refusal("evaluator", tmp_path, STATEMENT_KEY=str(tmp_path / "missing.pem"))
    assert "EVENMESH_EVALUATOR_STATEMENT_KEY" in errors
    assert len(errors.strip().splitlines()) == 1


async def test_the_orchestrators_client_reads_what_is_owed(
    readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENMESH_API_KEY", readers.secrets["asker"])
    channel = EvaluatorClient.channel_to(
        readers.addresses.evaluator or "", max_message_bytes=2**20, telemetry=Telemetry.disabled()
    )
    async with channel:
        found = await EvaluatorClient(channel).balance("nothing", 30.0, timeout_s=30)
        assert (found.names, found.owed.tolist()) == ((), [])


def test_a_provider_reads_saves_and_verifies_its_statement_on_the_page(
    readers: Readers, tmp_path: Path
) -> None:
    """In Chromium, before a real gateway: the key of a provider opens this page alone."""
    known = str(readers.public.parent / "keys.toml")
    with (
        GatewayProcess(tmp_path, readers.addresses, EVENMESH_API_KEYS=known) as served,
        chromium() as browser,
    ):
        console = ConsolePage(browser.new_page(viewport={"width": 1280, "height": 900}), served.url)
        page = console.page
        console.open("ask")
        page.locator("input[type=password]").fill(readers.secrets["provider"])
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("heading", name="Statements").wait_for()
        assert page.get_by_label("Pages").get_by_role("link").all_inner_texts() == ["Statements"]
        page.get_by_role("button", name="Get the statement").press("Enter")
        cells = page.locator("[data-configuration='0'] td")
        cells.first.wait_for()
        shown = [text.split("\n")[0].replace("\xa0", " ") for text in cells.all_inner_texts()]
        assert shown == ["12", "12", "6", "100.0 %", "75.0 %", "−25.0 %"]
        assert console.violations() == []
        with page.expect_download() as download:
            page.get_by_role("button", name="Save the signed file").press("Enter")
        file = tmp_path / "statement.json"
        download.value.save_as(file)
        keys = public_keys([readers.public])
        assert verify(parse(file.read_bytes()), keys, Expected(PROVIDER)).configurations[0].num_found == 12

        _, strange = new_key(tmp_path / "strange.pem")
        (tmp_path / "strange.public.pem").write_text(strange)
        changed = json.loads(file.read_text())
        payload = base64.b64decode(changed["payload"]).replace(b'"12"', b'"13"')
        changed["payload"] = base64.b64encode(payload).decode()
        forged, cut = tmp_path / "forged.json", tmp_path / "cut.json"
        forged.write_text(json.dumps(changed))
        cut.write_bytes(file.read_bytes()[:-40])
        page.locator(".verify summary").press("Enter")
        for statement, public, about, said in (
            (file, readers.public, "", "Verified. Signed by key"),
            (file, readers.public, PROVIDER, "Verified. Signed by key"),
            (file, readers.public, OTHER, f"it is about “{PROVIDER}”, not “{OTHER}”"),
            (file, tmp_path / "strange.public.pem", "", "no signature is of a key that you gave"),
            (forged, readers.public, "", "it was forged, changed or cut"),
            (cut, readers.public, "", "is not a signed statement, or only a part of one"),
            (file, tmp_path / "forged.json", "", "holds no public key in PEM"),
        ):
            page.get_by_label("Signed file").set_input_files(statement)
            page.get_by_label("Public keys").set_input_files(public)
            page.get_by_label("About whom").fill(about)
            page.get_by_role("button", name="Verify", exact=True).press("Enter")
            page.locator(".verify [role=status]").get_by_text(said).wait_for()
        assert console.violations() == []
        page.set_viewport_size({"width": 360, "height": 780})
        assert console.width() <= 360
        assert (console.strangers, console.complaints) == ([], [])
