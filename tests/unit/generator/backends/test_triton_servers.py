"""Several Triton servers behind one target: each gets calls, one that dies is left, a new one is found."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
import trustme

from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import MeshError
from evenmesh_generator.backends.triton import servers
from evenmesh_generator.backends.triton.client import TritonClient
from evenmesh_generator.backends.triton.servers import TritonServer, TritonServers, look_up
from evenmesh_generator.backends.triton.vllm import VllmModel
from evenmesh_generator.domain import Answer, Augmentation, Decoding, GenerationRequest
from evenmesh_generator.ports import Cancellation
from evenmesh_generator.runtime.statistics import EngineStatistics, combined, counts_alone
from evenmesh_kit.compute.tenant_places import TenantPlaces
from tests.support import triton_models
from tests.support.scripted_triton import MODEL, ScriptedTriton, free_port
from tests.support.together import outcomes
from tests.support.waiting import until

HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
REQUEST = GenerationRequest(
    "who?", augmentation=Augmentation.RETRIEVAL_FREE, decoding=Decoding(max_new_tokens=2)
)


class Names:
    """What a name resolves to, as a headless Service's does; everything else as always."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hosts: list[str] = []
        real = socket.getaddrinfo

        def getaddrinfo(host: Any, port: Any, *words: Any, **named: Any) -> Any:
            if host != "triton.test":
                return real(host, port, *words, **named)
            if not self.hosts:
                raise socket.gaierror("no such name")
            return [one for name in self.hosts for one in real(name, port, *words, **named)]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    return Names(monkeypatch)


@pytest_asyncio.fixture
async def two() -> AsyncIterator[list[ScriptedTriton]]:
    """Two servers on one port of two addresses."""
    port = free_port(*HOSTS)
    async with (
        ScriptedTriton("one", f"{HOSTS[0]}:{port}") as one,
        ScriptedTriton("two", f"{HOSTS[1]}:{port}") as other,
    ):
        yield [one, other]


def opened(target: str, **fields: Any) -> Any:
    return triton_models.opened(
        target, MODEL, triton_probe_interval_s=0.1, triton_resolve_interval_s=0.05, **fields
    )


async def ask(model: VllmModel, count: int = 1) -> list[Answer | MeshError]:
    return await outcomes(model, [REQUEST] * count, Cancellation(Deadline.after(30)))


async def answers(model: VllmModel, count: int) -> list[str]:
    return sorted(one.text if isinstance(one, Answer) else one.reason for one in await ask(model, count))


def at(model: VllmModel) -> list[str]:
    """Who is sent requests."""
    return sorted(one.client.target for one in model._writer.all if one.endpoint.up)


@pytest.mark.parametrize("by_name", [False, True])
async def test_every_server_gets_its_part_of_the_calls(
    by_name: bool, two: list[ScriptedTriton], names: Names
) -> None:
    names.hosts = list(HOSTS[:2])
    port = two[0].address.rpartition(":")[2]
    target = f"triton.test:{port}" if by_name else ",".join(one.address for one in two)
    async with opened(target) as (model,):
        await until(lambda: len(at(model)) == 2)
        assert await answers(model, 8) == ["one"] * 4 + ["two"] * 4


async def test_one_that_is_busy_gets_fewer(two: list[ScriptedTriton]) -> None:
    async with opened(",".join(one.address for one in two), triton_in_flight=4) as (model,):
        await until(lambda: len(at(model)) == 2)
        two[0].goes_on.clear()
        held = asyncio.create_task(answers(model, 8))
        await until(lambda: two[0].under_way >= 4 and model.in_flight == 4)
        # Its four places are taken, so that whoever comes now is not sent there.
        assert await answers(model, 4) == ["two"] * 4
        two[0].goes_on.set()
        assert await held == ["one"] * 4 + ["two"] * 4


async def test_calls_of_a_server_that_dies_are_answered_by_another(two: list[ScriptedTriton]) -> None:
    async with opened(",".join(one.address for one in two)) as (model,):
        await until(lambda: len(at(model)) == 2)
        two[0].goes_on.clear()
        held = asyncio.create_task(answers(model, 6))
        await until(lambda: two[0].under_way >= 3)
        await two[0].die()
        assert await held == ["two"] * 6
        assert await answers(model, 4) == ["two"] * 4
        assert at(model) == [two[1].address]
        assert model.up


async def test_a_call_of_which_something_was_read_is_not_sent_again(two: list[ScriptedTriton]) -> None:
    async with opened(",".join(one.address for one in two)) as (model,):
        await until(lambda: len(at(model)) == 2)
        for one in two:
            one.ends.clear()
        asked = sum(one.asked for one in two)
        stream = model.generate_stream(REQUEST, Cancellation(Deadline.after(30)))
        first = await anext(stream)
        (server,) = (one for one in two if one.name.startswith(first))
        await server.die()
        with pytest.raises(MeshError) as raised:
            await anext(stream)
        assert raised.value.reason == "TRITON_UNAVAILABLE"
        assert sum(one.asked for one in two) - asked < 3, "its own, and at most a probe of the other"


async def test_a_new_server_is_found_and_one_that_has_gone_is_forgotten(
    two: list[ScriptedTriton], names: Names
) -> None:
    names.hosts = [HOSTS[0]]
    port = two[0].address.rpartition(":")[2]
    async with opened(f"triton.test:{port}") as (model,):
        assert await answers(model, 4) == ["one"] * 4
        names.hosts = list(HOSTS[:2])
        await until(lambda: len(at(model)) == 2)
        assert await answers(model, 4) == ["one", "one", "two", "two"]
        # It is about to end: it still answers, and is asked no more.
        names.hosts = [HOSTS[1]]
        await until(lambda: not all(one.server.listed for one in model._writer.all))
        assert await answers(model, 4) == ["two"] * 4
        await two[0].die()
        await until(lambda: len(model._writer.all) == 1)
        # A pod that replaces it has an address of its own.
        async with ScriptedTriton("three", f"{HOSTS[2]}:{port}"):
            names.hosts = list(HOSTS[1:])
            await until(lambda: len(at(model)) == 2)
            assert await answers(model, 4) == ["three", "three", "two", "two"]


async def test_certificates_name_the_target_and_not_its_addresses(names: Names, tmp_path: Path) -> None:
    authority, port = trustme.CA(), free_port(*HOSTS[:2])
    issued = authority.issue_cert("triton.test")
    chain = b"".join(one.bytes() for one in issued.cert_chain_pems)
    credentials = grpc.ssl_server_credentials([(issued.private_key_pem.bytes(), chain)])
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    names.hosts = list(HOSTS[:2])
    async with (
        ScriptedTriton("one", f"{HOSTS[0]}:{port}", credentials),
        ScriptedTriton("two", f"{HOSTS[1]}:{port}", credentials),
        opened(f"triton.test:{port}", triton_ssl=True, triton_root_certificates=tmp_path / "ca.pem") as (
            model,
        ),
    ):
        await until(lambda: len(at(model)) == 2)
        assert await answers(model, 4) == ["one", "one", "two", "two"]


async def test_a_name_that_is_not_resolved_any_more_takes_no_server_away(
    two: list[ScriptedTriton], names: Names
) -> None:
    names.hosts = list(HOSTS[:2])
    port = int(two[0].address.rpartition(":")[2])
    found = made([f"triton.test:{port}"])
    await found.refresh()
    assert [one.client.target for one in found.all] == [one.address for one in two]
    names.hosts = []
    await found.refresh()
    assert [one.client.target for one in found.all] == [one.address for one in two]
    await found.close()


def made(targets: list[str], **fields: Any) -> TritonServers:
    return TritonServers(
        targets,
        lambda address, _: TritonClient(address),
        lambda: TenantPlaces(1, share=1.0, where="a server"),
        interval_s=60,
        **fields,
    )


async def test_a_pod_with_two_addresses_is_one_server(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fd00::1", 8001, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 8001)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
    assert await look_up("triton", 8001) == ["10.0.0.1:8001"]
    both.pop()
    assert await look_up("triton", 8001) == ["[fd00::1]:8001"]


async def test_a_server_that_computes_is_not_forgotten_and_one_that_idles_is_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listed = ["10.0.0.1:1", "10.0.0.2:1"]

    async def find(host: str, port: int) -> list[str]:
        return listed

    found = made(["triton:1"], find=find)
    left: list[str] = []

    async def leave(server: TritonServer) -> None:
        left.append(server.client.target)

    found.on_leave = leave
    found.in_use = lambda _: True
    await found.refresh()
    leaving = found.all[0]
    listed.remove("10.0.0.1:1")
    monkeypatch.setattr(servers, "_LEAVE_S", 0.0)
    async with leaving.places.hold(Deadline.after(30)):
        await found.refresh()
        assert (found.held, left) == (1, [])
    await found.refresh()
    assert (found.held, left) == (0, ["10.0.0.1:1"])
    await found.close()


async def test_more_servers_than_can_be_monitored_are_not_called() -> None:
    async def find(host: str, port: int) -> list[str]:
        return [f"10.0.{one}.1:{port}" for one in range(200)]

    found = made(["triton:1"], find=find)
    await found.refresh()
    assert len(found.all) == servers.MOST_SERVERS
    await found.close()


def test_what_servers_have_done_adds_up_and_stays_when_one_goes() -> None:
    one = EngineStatistics(waiting=1, finished=2, cache_bytes=3, most_steps_after_cancel=2)
    other = EngineStatistics(waiting=4, finished=5, most_steps_after_cancel=1)
    assert combined([one, other]) == EngineStatistics(
        waiting=5, finished=7, cache_bytes=3, most_steps_after_cancel=2
    )
    assert counts_alone(one) == EngineStatistics(finished=2, most_steps_after_cancel=2)
