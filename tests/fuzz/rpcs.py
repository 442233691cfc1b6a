"""Odd requests sent to every method, and what is wrong with how they were taken."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, Self

import grpc
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2

from evenmesh.common.v1 import common_pb2
from tests.fuzz import recipes, wire
from tests.fuzz.mesh import RPCS, FuzzMesh, Held, Rpc
from tests.support.methods import LOST_STATUS, calls_of

FINDINGS: Final = Path(__file__).with_name("findings") / "rpcs.jsonl"
"""Requests that were once taken wrongly."""

TIMEOUT_S: Final = 20.0
_HUNG_S: Final = 15.0
_ATTEMPTS: Final = 5
_MOST_BYTES: Final = 2**25
_MOST_STREAM_BYTES: Final = 2**23
"""Largest message of a stream: gRPC refuses one above its server's limit unread, and its caller loses that."""
_DETAILS: Final = "grpc-status-details-bin"
_ITEM_ERROR: Final = common_pb2.ItemError.DESCRIPTOR.full_name
_WRONG: Final = frozenset(
    {"INTERNAL", "UNKNOWN", "DATA_LOSS", "ABORTED", "CANCELLED", "UNIMPLEMENTED", "UNAVAILABLE"}
)
_OF_GRPC: Final = frozenset({"DEADLINE_EXCEEDED"})
_SLOW: Final = frozenset(
    {
        "Ask",
        "Audit",
        "Converse",
        "Generate",
        "GenerateBatch",
        "ScoreRelevance",
        "Rerank",
        "Ingest",
        "CreateCollection",
        "DeleteCollection",
        "DeletePassages",
        "SearchVoteWeights",
        "RegisterAgent",
    }
)
"""Methods that run a model or write to the disk: long runs send them a fifth of what others get."""

_METADATA: Final = (
    (("authorization", "Bearer rm_" + "x" * 500),),
    (("authorization", "nonsense"), ("authorization", "Bearer a.b.c")),
    (("evenmesh-tenant", "../../other"),),
    (("traceparent", "00-" + "f" * 32 + "-" + "0" * 16 + "-ff"), ("tracestate", "=,=" * 200)),
    (("x-bin", b"\xff\x00"), ("grpc-status-details-bin", b"\xff")),
)

Case = tuple[bytes, ...]
"""What one call sends: one request, or those of its stream."""


def case(rpc: Rpc, rng: Random, versions: Sequence[str] = ()) -> Case:
    """What a call sends: all wild, or nearly right with something wild on top, or no message at all."""
    roll = rng.random()
    if roll < 0.03:
        made: list[bytes] = [rng.randbytes(rng.choice((1, 5, 100)))]
    elif roll < 0.3:
        density = rng.choice((0.05, 0.3, 0.8))
        count = rng.choice((0, 1, 1, 2, 4)) if rpc.takes_many else 1
        made = [wire.message(rpc.request, rng, density=density) for _ in range(count)]
    else:
        made = [one.SerializeToString() for one in recipes.requests(rpc.name, rng, versions)]
        roll = rng.random()
        if roll < 0.3:
            made = [_merged(rpc, one + wire.single(rpc.request, rng)) for one in made]
        elif roll < 0.6:
            # What comes later overrides, is merged or is appended: one field of a right request turns odd.
            odd = (wire.message(rpc.request, rng, density=rng.choice((0.02, 0.1))) for _ in made)
            made = [_merged(rpc, one + more) for one, more in zip(made, odd, strict=True)]
    if rng.random() < 0.08:
        made = [wire.mutated(one, rng) for one in made]
    most = _MOST_STREAM_BYTES if rpc.takes_many else _MOST_BYTES
    return tuple(one[:most] for one in made)


def _merged(rpc: Rpc, data: bytes) -> bytes:
    """Write a message as protobuf does, each field once; as it is where it cannot be read."""
    try:
        return GetMessageClass(rpc.request).FromString(data).SerializeToString()
    except (DecodeError, ValueError):
        return data


@dataclass(frozen=True, slots=True)
class Finding:
    """A call that was not taken as it should be."""

    rpc: str
    case: Case
    problem: str

    def line(self) -> str:
        """As a line of :data:`FINDINGS`."""
        return json.dumps(
            {"rpc": self.rpc, "requests": [one.hex() for one in self.case], "problem": self.problem}
        )


@dataclass
class Tally:
    """What became of the calls."""

    statuses: dict[str, Counter[str]] = field(default_factory=dict)
    """How often each method ended how."""
    findings: list[Finding] = field(default_factory=list)
    slowest: dict[str, float] = field(default_factory=dict)
    """Longest call of each method. Seconds."""

    @property
    def calls(self) -> int:
        """All of them."""
        return sum(sum(one.values()) for one in self.statuses.values())

    def add(self, rpc: Rpc, status: str, problem: str, sent: Case, seconds: float) -> None:
        """Notes a call."""
        self.statuses.setdefault(rpc.name, Counter())[status] += 1
        self.slowest[rpc.name] = max(self.slowest.get(rpc.name, 0.0), seconds)
        if problem:
            self.findings.append(Finding(rpc.name, sent, problem))


class Incidents(logging.Handler):
    """Keeps what services log of errors they have no place for, which says what is behind an INTERNAL."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.stacks: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps the innermost frames."""
        if record.exc_info is not None and record.exc_info[1] is not None:
            self.stacks.append("".join(traceback.format_exception(record.exc_info[1]))[-3000:])

    def __enter__(self) -> Self:
        logging.getLogger("evenmesh").addHandler(self)
        return self

    def __exit__(self, *exc: object) -> None:
        logging.getLogger("evenmesh").removeHandler(self)


def plan(total: int) -> dict[str, int]:
    """How many calls each method gets of so many."""
    weights = {rpc.name: 1 if rpc.method.name in _SLOW else 5 for rpc in RPCS}
    unit = total / sum(weights.values())
    return {name: math.ceil(weight * unit) for name, weight in weights.items()}


async def send(
    mesh: FuzzMesh, rpc: Rpc, sent: Case, *, leave: bool = False, metadata: Any = None
) -> tuple[str, str]:
    """Makes one call. How it ended, and what is wrong with that; nothing is where that is empty.

    A call whose status the caller's gRPC has lost is made again; where that happens each time, as on a busy
    machine, it has ended "lost". A service cannot send those words: gRPC puts others before what it raises.

    Args:
        mesh: where.
        rpc: the method.
        sent: the requests, as bytes.
        leave: whether to cancel the call as soon as it is made.
        metadata: that it brings along.
    """
    for _ in range(_ATTEMPTS):
        status, wrong = await _send(mesh, rpc, sent, leave=leave, metadata=metadata)
        if not (rpc.takes_many and wrong == LOST_STATUS):
            return status, wrong
    return "lost", ""


async def _send(mesh: FuzzMesh, rpc: Rpc, sent: Case, *, leave: bool, metadata: Any) -> tuple[str, str]:
    channel = mesh.channels[rpc.server]
    multi = calls_of(channel, rpc.method)(rpc.path)
    call = multi(_each(sent) if rpc.takes_many else sent[0], timeout=TIMEOUT_S, metadata=metadata)
    replies: list[bytes] = []
    try:
        async with asyncio.timeout(TIMEOUT_S + _HUNG_S):
            if leave:
                await asyncio.sleep(0)
                call.cancel()
            if rpc.method.server_streaming:
                async for reply in call:
                    replies.append(reply)
            else:
                replies.append(await call)
    except TimeoutError:
        if call.done():
            return "late", ""  # it ended in time, and this process was not let run to see it
        running = f"{mesh.servers[rpc.server].in_flight} calls run in {rpc.server}"
        return "HUNG", f"no end although the deadline was over: {running}{', it was left' if leave else ''}"
    except grpc.aio.AioRpcError as error:
        return error.code().name, _wrong_with(error)
    except asyncio.CancelledError:
        if leave:
            return "left", ""
        raise
    return "OK", next((problem for one in replies if (problem := _wrong_in(rpc, one))), "")


async def _each(sent: Case) -> AsyncIterator[bytes]:
    for one in sent:
        yield one


def _wrong_with(error: grpc.aio.AioRpcError) -> str:
    name = error.code().name
    if name in _WRONG:
        return f"{name}: {error.details()}"
    details = [value for key, value in error.trailing_metadata() or () if key == _DETAILS]
    if not details:
        if name == "RESOURCE_EXHAUSTED" and "message larger than max" in str(error.details()):
            return ""  # gRPC's own, before anything of it is read
        return "" if name in _OF_GRPC else f"{name} without details: {error.details()}"
    status = status_pb2.Status.FromString(details[0])
    info = error_details_pb2.ErrorInfo()
    if not any(one.Is(info.DESCRIPTOR) and one.Unpack(info) and info.reason for one in status.details):
        return f"{name} without a reason: {error.details()}"
    return ""


def _wrong_in(rpc: Rpc, reply: bytes) -> str:
    try:
        message: Message = GetMessageClass(rpc.method.output_type).FromString(reply)
    except DecodeError as error:
        return f"the reply is no {rpc.method.output_type.full_name}: {error}"
    for item in item_errors(message):
        if item.code in ("INTERNAL", "UNKNOWN", "") or not item.reason:
            return f"an item of the reply has {item.code or 'no code'}: {item.message}"
    return ""


def item_errors(message: Message) -> Iterator[common_pb2.ItemError]:
    if message.DESCRIPTOR.full_name == _ITEM_ERROR:
        yield common_pb2.ItemError.FromString(message.SerializeToString())
        return
    for one, value in message.ListFields():
        kind: Descriptor | None = one.message_type
        if kind is None or kind.GetOptions().map_entry:
            continue
        for inner in value if one.is_repeated else (value,):
            yield from item_errors(inner)


async def fuzz(
    mesh: FuzzMesh, counts: dict[str, int], *, seed: int, workers: int = 6, on_call: Any = None
) -> Tally:
    """Sends so many calls to each method, several at a time; each drawn from the seed, method and number."""
    tally = Tally()
    work = [
        (number / count, rpc, number)
        for rpc in RPCS
        for count in (counts.get(rpc.name, 0),)
        for number in range(count)
    ]
    work.sort(key=lambda one: (one[0], one[1].name))  # all methods side by side, from first to last
    waiting = iter(work)

    async def worker() -> None:
        for _, rpc, number in waiting:
            rng = Random(f"{seed}:{rpc.name}:{number}")
            sent = case(rpc, rng, mesh.versions)
            began = time.monotonic()
            leave, metadata = rng.random() < 0.02, rng.choice(_METADATA) if rng.random() < 0.1 else None
            status, problem = await send(mesh, rpc, sent, leave=leave, metadata=metadata)
            tally.add(rpc, status, problem, sent, time.monotonic() - began)
            if on_call is not None:
                await on_call(tally)

    await asyncio.gather(*(worker() for _ in range(workers)))
    return tally


async def still_right(mesh: FuzzMesh) -> list[str]:
    """Methods that no longer take one of several right requests."""
    broken = []
    for rpc in RPCS:
        for number in range(60):
            sent = tuple(
                one.SerializeToString() for one in recipes.requests(rpc.name, Random(number), mesh.versions)
            )
            status, problem = await send(mesh, rpc, sent)
            if status == "OK" and not problem:
                break
        else:
            broken.append(rpc.name)
    return broken


def known() -> Sequence[tuple[Rpc, Case]]:
    """The calls of :data:`FINDINGS`."""
    by_name = {rpc.name: rpc for rpc in RPCS}
    if not FINDINGS.exists():
        return ()
    lines = [json.loads(line) for line in FINDINGS.read_text(encoding="utf-8").splitlines()]
    return [(by_name[one["rpc"]], tuple(map(bytes.fromhex, one["requests"]))) for one in lines]


__all__ = ["Finding", "Held", "Incidents", "Tally", "case", "fuzz", "known", "plan", "send", "still_right"]
