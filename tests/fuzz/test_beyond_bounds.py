"""Every text, list and map of every request, one beyond its bound: each is refused, and the error names it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, Final

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2

from evenmesh.wire.bounds import bounds_of
from evenmesh.wire.methods import facts_of
from tests.fuzz import recipes, rpcs
from tests.fuzz.mesh import RPCS, FuzzMesh, Rpc
from tests.support.methods import calls_of

_TEXTS: Final = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
_LEVELS: Final = 5
_DRAWS: Final = 200
_MOST_BYTES: Final = 2**21

pytestmark = pytest.mark.timeout(600)

Fields = tuple[FieldDescriptor, ...]


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FuzzMesh]:
    """The services."""
    with FuzzMesh(tmp_path_factory.mktemp("bounds")) as mesh:
        yield mesh


def _entry(kind: FieldDescriptor) -> bool:
    return kind.message_type is not None and bool(kind.message_type.GetOptions().map_entry)


def _paths(message: Descriptor, seen: tuple[str, ...] = ()) -> Iterator[Fields]:
    """Yield the fields that can grow, each with those that lead to it."""
    for kind in message.fields:
        inner = kind.message_type
        if kind.is_repeated or kind.type in _TEXTS:
            yield (kind,)
        if inner is None or _entry(kind) or inner.full_name in seen or len(seen) == _LEVELS:
            continue
        for path in _paths(inner, (*seen, message.full_name)):
            yield (kind, *path)


def _around(message: Any, path: Fields) -> Any:
    """Return the message that has the last field of a path; make those that are missing."""
    for kind in path[:-1]:
        inside = getattr(message, kind.name)
        if kind.is_repeated:
            inside = inside[0] if len(inside) else inside.add()
        else:
            inside.SetInParent()
        message = inside
    return message


def _text(kind: FieldDescriptor, size: int) -> str | bytes:
    return b"x" * size if kind.type == FieldDescriptor.TYPE_BYTES else "x" * size


def _longer(kind: FieldDescriptor) -> Callable[[Any], None] | None:
    """Return what makes a text of a field too long; None where it has no texts."""
    bounds = bounds_of(kind)
    if _entry(kind):
        key, value = kind.message_type.fields
        if value.type in _TEXTS:
            return lambda inside: getattr(inside, kind.name).update({"k": "x" * (bounds.max_bytes + 1)})
        if key.type in _TEXTS and value.message_type is None:
            return lambda inside: getattr(inside, kind.name).update({"k" * (bounds.max_key_bytes + 1): 1})
        return None
    if kind.type not in _TEXTS:
        return None
    text = _text(kind, bounds.max_bytes + 1)
    if kind.is_repeated:
        return lambda inside: getattr(inside, kind.name).MergeFrom([text])
    return lambda inside: setattr(inside, kind.name, text)


def _more(kind: FieldDescriptor) -> Callable[[Any], None] | None:
    """Return what makes a list or a map of a field too long; None where it is neither."""
    most = bounds_of(kind).max_items or bounds_of(kind).max_pairs
    if not kind.is_repeated or 2 * most > _MOST_BYTES:
        return None

    def fill(inside: Any) -> None:
        held = getattr(inside, kind.name)
        for place in range(len(held), most + 1):
            if _entry(kind):
                key, value = kind.message_type.fields
                at = str(place) if key.type in _TEXTS else place
                if value.message_type is not None:
                    held[at].SetInParent()
                else:
                    held[at] = "x" if value.type in _TEXTS else 1
            elif kind.message_type is not None:
                held.add()
            else:
                held.append(_text(kind, 1) if kind.type in _TEXTS else 1)

    return fill


async def _refusal(mesh: FuzzMesh, rpc: Rpc, sent: Sequence[bytes]) -> str:
    """Return what is said of the fields of a refused request; empty where it is accepted."""
    multi = calls_of(mesh.channels[rpc.server], rpc.method)(rpc.path)

    async def each() -> Any:
        for one in sent:
            yield one

    call = multi(each() if rpc.takes_many else sent[0], timeout=rpcs.TIMEOUT_S)
    try:
        replies = [one async for one in call] if rpc.method.server_streaming else [await call]
    except grpc.aio.AioRpcError as error:
        if error.code() not in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED):
            return ""
        return _violations(error) or str(error.details())
    kind = GetMessageClass(rpc.method.output_type)
    errors = (item for one in replies for item in rpcs.item_errors(kind.FromString(one)))
    return " ".join(f"{one.field}: {one.message}" for one in errors if one.code != "INTERNAL")


def _violations(error: grpc.aio.AioRpcError) -> str:
    data = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b"")
    for one in status_pb2.Status.FromString(data).details:
        bad = error_details_pb2.BadRequest()
        if one.Is(bad.DESCRIPTOR) and one.Unpack(bad):
            return " ".join(f"{found.field}: {found.description}" for found in bad.field_violations)
    return ""


def _right(mesh: FuzzMesh, rpc: Rpc) -> Message:
    """Return the first request of a call that the service accepts, or any one where none is."""
    drawn = (recipes.requests(rpc.name, Random(f"right:{number}"), mesh.versions) for number in range(_DRAWS))
    for sent in drawn:
        if sent and not mesh.run(_refusal(mesh, rpc, [one.SerializeToString() for one in sent])):
            return sent[0]
    return GetMessageClass(rpc.request)()


@pytest.mark.parametrize("rpc", RPCS, ids=lambda rpc: rpc.name)
def test_a_field_beyond_its_bound_is_refused_by_its_name(mesh: FuzzMesh, rpc: Rpc) -> None:
    right, accepted = _right(mesh, rpc), []
    for path in _paths(rpc.request):
        for beyond in (_longer(path[-1]), _more(path[-1])):
            request = type(right)()
            request.CopyFrom(right)
            if beyond is None:
                continue
            beyond(_around(request, path))
            data = request.SerializeToString()
            if len(data) > min(facts_of(rpc.path).max_request_bytes or _MOST_BYTES, _MOST_BYTES):
                continue
            said = mesh.run(_refusal(mesh, rpc, [data]))
            if not any(one.name in said for one in path[-2:]):  # a cost is that of a whole message
                accepted.append((".".join(one.name for one in path), said))
    assert not accepted
