"""Checks whether model servers answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from evenmesh_kit.remote.client import Checked, RemoteClient
from evenmesh_kit.remote.monitor import ServerMonitor, serves
from evenmesh_kit.remote.options import RemoteOptions
from tests.support.scripted_http import HttpReply, HttpRequest, Script, hang, replying, serving


async def checked(script: Script) -> Checked:
    found: list[Checked] = []
    async with serving(script) as server:
        # Short only where the answer never comes: on a busy machine another may take this long.
        options = {"idle_s": 0.2} if script is hang else {}
        client = RemoteClient(RemoteOptions(urls=(server.url,), **options))
        await ServerMonitor(client, "/models", every_s=9.0, report=found.extend).check()
        await client.close()
    (one,) = found
    return one


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (replying(200, {"data": []}), True),
        (replying(200, ""), True),
        (replying(404, {}), True),
        (replying(405, {}), True),
        (replying(429, {}), True),
        (replying(401, {}), False),
        (replying(403, {}), False),
        (replying(500, {}), False),
        (replying(503, {}), False),
        (hang, False),
    ],
)
async def test_a_server_serves_unless_it_fails_is_silent_or_refuses_the_key(
    script: Script, expected: bool
) -> None:
    assert serves(await checked(script)) is expected


@pytest.mark.parametrize("script", [replying(404, {}), replying(200, ""), replying(429, {})])
async def test_servers_without_the_path_are_not_left_alone(
    script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(script) as first, serving(script) as second:
        client = RemoteClient(RemoteOptions(urls=(first.url, second.url)))
        monitor = ServerMonitor(client, "/models", every_s=9.0, report=lambda _: None)
        await monitor.check()
        await monitor.check()
        assert all(endpoint.healthy for endpoint in client.endpoints)
        await client.close()
    assert "model server failed" not in caplog.messages


async def test_a_server_that_fails_is_left_alone_until_it_answers() -> None:
    status = [503]

    async def script(_: HttpRequest, reply: HttpReply) -> None:
        await reply.send(status[0], {})

    async with serving(script) as server:
        client = RemoteClient(RemoteOptions(urls=(server.url,)))
        monitor = ServerMonitor(client, "/models", every_s=9.0, report=lambda _: None)
        await monitor.check()
        assert not client.endpoints[0].healthy
        status[0] = 404
        await monitor.check()
        assert client.endpoints[0].healthy
        await client.close()


async def test_a_server_that_is_away_does_not_serve() -> None:
    async with serving(hang) as server:
        url = server.url
    found: list[Checked] = []
    client = RemoteClient(RemoteOptions(urls=(url,)))
    await ServerMonitor(client, "/models", every_s=9.0, report=found.extend).check()
    await client.close()
    assert [serves(one) for one in found] == [False]


async def test_each_server_is_checked_again_and_again() -> None:
    reports: list[list[Any]] = []
    again = asyncio.Event()

    def report(checked: Sequence[Checked]) -> None:
        reports.append([one.reply for one in checked])
        if len(reports) == 3:
            again.set()

    async with serving(replying(200, {"a": 1})) as first, serving(replying(200, {"b": 2})) as second:
        client = RemoteClient(RemoteOptions(urls=(first.url, second.url)))
        monitor = ServerMonitor(client, "/models", every_s=0.01, report=report)
        monitor.start()
        await asyncio.wait_for(again.wait(), 10)
        await monitor.close()
        count = len(reports)
        await asyncio.sleep(0.05)
        await client.close()
    assert reports[0] == [{"a": 1}, {"b": 2}]
    assert len(reports) == count


async def test_a_report_that_fails_does_not_end_the_checks(caplog: pytest.LogCaptureFixture) -> None:
    again = asyncio.Event()
    failures = iter([RuntimeError("no"), RuntimeError("no")])

    def report(_: Sequence[Checked]) -> None:
        for failure in failures:
            raise failure
        again.set()

    async with serving(replying(200, {})) as server:
        client = RemoteClient(RemoteOptions(urls=(server.url,)))
        monitor = ServerMonitor(client, "/models", every_s=0.01, report=report)
        monitor.start()
        await asyncio.wait_for(again.wait(), 10)
        await monitor.close()
        await client.close()
    assert caplog.messages.count("model servers cannot be checked") == 2
