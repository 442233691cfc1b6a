"""Processes that read pages: they answer, break, are ended, and are replaced."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from evenmesh_retriever.backends.web.page import Page, Text
from evenmesh_retriever.backends.web.readers import Readers
from tests.unit.retriever.backends.web.small_web import SHORT

pytestmark = pytest.mark.asyncio(loop_scope="module")

GOOD = Page(SHORT.encode(), "text/html", None)
# A tag of so many attributes keeps a parser busy for more than a minute.
ENDLESS = Page(("<p " + " ".join(f"a{i}='>'" for i in range(80_000)) + ">x</p>").encode(), "text/html", None)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def readers() -> AsyncIterator[Readers]:
    readers = Readers(1)
    await readers.start()
    yield readers
    await readers.close()


def _pid(readers: Readers) -> int:
    (reader,) = readers._idle
    assert reader._process is not None
    return reader._process.pid


async def _title(readers: Readers) -> str:
    text = await readers.read(GOOD, "http://a.test/", timeout_s=60)
    assert isinstance(text, Text)
    return text.title


async def test_one_process_reads_page_after_page(readers: Readers) -> None:
    before = _pid(readers)
    assert [await _title(readers) for _ in range(3)] == ["A short lake"] * 3
    assert await readers.read(Page(b"", "text/html", None), "http://a.test/", timeout_s=60) is None
    assert _pid(readers) == before


async def test_waiting_callers_get_their_turn(readers: Readers) -> None:
    assert await asyncio.gather(*(_title(readers) for _ in range(5))) == ["A short lake"] * 5


async def test_a_page_that_takes_too_long_ends_its_reader_and_not_this_process(readers: Readers) -> None:
    before = _pid(readers)
    with pytest.raises(TimeoutError):
        await readers.read(ENDLESS, "http://a.test/", timeout_s=0.5)
    assert await _title(readers) == "A short lake"
    assert _pid(readers) != before
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)


async def test_a_caller_that_leaves_ends_its_reader(readers: Readers) -> None:
    before = _pid(readers)
    reading = asyncio.create_task(readers.read(ENDLESS, "http://a.test/", timeout_s=60))
    while readers._idle:
        await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert await _title(readers) == "A short lake"
    assert _pid(readers) != before


async def test_a_reader_that_dies_is_replaced(readers: Readers) -> None:
    os.kill(_pid(readers), signal.SIGKILL)
    assert await readers.read(GOOD, "http://a.test/", timeout_s=60) is None
    assert await _title(readers) == "A short lake"


def _environment(pid: int) -> set[bytes] | None:
    """Names of the variables of a process; None where a system does not show them."""
    file = Path(f"/proc/{pid}/environ")
    if not file.exists():
        return None
    return {one.partition(b"=")[0] for one in file.read_bytes().split(b"\0") if one}


async def test_a_reader_sees_nothing_of_our_environment(readers: Readers) -> None:
    names = await asyncio.to_thread(_environment, _pid(readers))
    if names is None:
        pytest.skip("this system does not show the environment of a process")
    assert names == {b"PYTHONPATH", b"PYTHONUTF8"}


async def test_a_reader_ends_with_its_input() -> None:
    ended = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "evenmesh_retriever.backends.web.reader"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=60,
    )
    assert (ended.returncode, ended.stdout[4:], ended.stderr) == (0, b'{"missing": null}', b"")
