"""Keys and the limits of tenants, as a real service behind the gateway holds them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest

from evenmesh.orchestrator.v1.orchestrator_service_pb2_grpc import add_OrchestratorServiceServicer_to_server
from evenmesh_kit.rpc.server import MeshServer, Registration
from evenmesh_kit.security.keys import KeyEntry, add_entry, new_key
from evenmesh_kit.settings import ServiceSettings
from evenmesh_kit.telemetry.setup import Telemetry
from tests.support.lifecycle import Idle
from tests.support.scripted import Orchestrator
from tests.unit.gateway.conftest import Open

SAID = [{"role": "user", "content": "How often?"}]
NAME = "evenmesh.orchestrator.v1.OrchestratorService"


@pytest.fixture
async def limited(tmp_path: Path) -> AsyncIterator[tuple[str, dict[str, str]]]:
    """An orchestrator that knows two tenants and lets one of them ask once an hour; and their keys."""
    path, limits, keys = tmp_path / "keys.toml", tmp_path / "limits.toml", {}
    for tenant in ("acme", "other"):
        keys[tenant], digest = new_key()
        add_entry(path, KeyEntry(name=tenant, sha256=digest, tenant=tenant, roles=["ask"]))
    limits.write_text("[tenants.acme]\ncalls_per_s = 0.0002778\nburst = 1\n")
    settings = ServiceSettings(home=tmp_path, port=0, api_keys=path, limits=limits)
    registration = Registration(add_OrchestratorServiceServicer_to_server, Orchestrator(), NAME)
    async with MeshServer(
        "orchestrator", settings, Idle(registration), telemetry=Telemetry.disabled()
    ) as server:
        yield server.address, keys


async def test_a_tenant_over_its_limit_learns_when_to_come_again(
    limited: tuple[str, dict[str, str]], open_gateway: Open
) -> None:
    """The gateway knows nobody itself: it sends the credential on, and the service refuses."""
    address, keys = limited
    gateway = await open_gateway(orchestrator_target=address)

    def client(key: str) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{gateway.base_url}/v1", api_key=key, max_retries=0)

    acme = client(keys["acme"])
    done = await acme.chat.completions.create(model="evenmesh", messages=SAID)
    assert done.choices[0].message.content == "every 200 kilometres"
    for stream in (False, True):
        with pytest.raises(openai.RateLimitError) as refused:
            await acme.chat.completions.create(model="evenmesh", messages=SAID, stream=stream)
        assert refused.value.code == "RATE_LIMITED"
        assert 3_000 < int(refused.value.response.headers["retry-after"]) <= 3_600
    other = await client(keys["other"]).chat.completions.create(model="evenmesh", messages=SAID)
    assert other.choices
    for wrong in ("emk_guessed", keys["acme"][:-1] + "_"):
        with pytest.raises(openai.AuthenticationError) as unknown:
            await client(wrong).chat.completions.create(model="evenmesh", messages=SAID)
        assert unknown.value.response.headers["www-authenticate"] == "Bearer"
