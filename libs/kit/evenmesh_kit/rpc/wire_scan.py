"""Check the bounds of a message on its bytes, before protobuf decodes it.

A decoded message can take many times the memory of its bytes: an empty passage is two bytes on the wire and
about a hundred in memory. A :class:`Scanner` walks the wire format and stops at the first thing beyond a
bound, so that a hostile message costs no more than the largest valid one. The protos state the bounds
(``protos/evenmesh/common/v1/bounds.proto``). Bounds of lists in lists multiply, so a scan also estimates
what the whole message takes decoded.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from operator import mul
from types import MappingProxyType
from typing import Any, Final, cast

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from evenmesh.wire.bounds import bounds_of
from evenmesh.wire.errors import InvalidField, MeshError

UNSTATED: Final = 1024
"""Bound where a proto states none, as those of gRPC's own services: items, entries or bytes."""
MAX_UNKNOWN: Final = 16
"""Most unknown fields of one message; a later version of the contract may have some."""
MAX_LEVELS: Final = 32
"""Most levels of messages in messages."""

# Estimates for upb, rounded up; a text has to become one of Python too. Bytes.
_MESSAGE_BYTES: Final = 24
_TEXT_BYTES: Final = 16
_OTHER_BYTES: Final = 8
_LIST_BYTES: Final = 96
_MAP_BYTES: Final = 192
_TEXT_ITEM_BYTES: Final = 64
_ITEM_BYTES: Final = 8
_ENTRY_BYTES: Final = 112
_UNKNOWN_BYTES: Final = 32
_MOST_COUNTED: Final = 4
"""Most fields of a short message whose items are counted by their tags instead of a walk."""

_TEXT, _MESSAGE, _PACKED, _VARINT, _FIXED = range(5)
_UNKNOWN: Final = 0
"""Slot of the unknown fields."""
_MOST_FREE: Final = 1024
_KEY_SEEN: Final = 512
_CONTINUED: Final = bytes(range(0x80, 0x100))
_TEXTS: Final = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
_WIDTHS: Final[Mapping[int, int]] = MappingProxyType(
    {
        FieldDescriptor.TYPE_DOUBLE: 8,
        FieldDescriptor.TYPE_FIXED64: 8,
        FieldDescriptor.TYPE_SFIXED64: 8,
        FieldDescriptor.TYPE_FLOAT: 4,
        FieldDescriptor.TYPE_FIXED32: 4,
        FieldDescriptor.TYPE_SFIXED32: 4,
    }
)
_WIRE_TYPES: Final[Mapping[int, int]] = MappingProxyType({8: 1, 4: 5})


class _BeyondError(Exception):
    """A field is beyond a bound; ``path`` has the names from the inside out."""

    def __init__(self, text: str, *path: str) -> None:
        super().__init__(text)
        self.text = text
        self.path = list(path)


class _MalformedError(Exception):
    """The bytes are not a message."""


class _TooMuchError(Exception):
    """The message would take too much memory decoded."""


class Scanner:
    """Checks the bytes of one kind of message.

    Besides the stated bounds, a singular field comes at most once, a message has at most :data:`MAX_UNKNOWN`
    unknown fields and :data:`MAX_LEVELS` levels, and there are no groups. What protobuf writes for a valid
    message never breaks these. Bytes that are too few to break any bound are not walked.

    Args:
        descriptor: the kind of message.
        texts: whether to check the lengths of texts too, which take no more memory decoded than on the wire.
    """

    def __init__(self, descriptor: Descriptor, *, texts: bool = True) -> None:
        self._name = descriptor.full_name
        self._root = _Node(descriptor, {}, texts=texts)

    def scan(self, data: bytes, most: int = sys.maxsize) -> int:
        """Check a message, in time proportional to the fields before the first one beyond a bound.

        Args:
            data: the message.
            most: largest estimate of the decoded message. Bytes.

        Returns:
            Estimate of the memory that the message takes decoded. Bytes.

        Raises:
            InvalidField: a field is beyond a bound; has its path.
            MeshError: INVALID_ARGUMENT, ``MALFORMED_REQUEST``: the bytes are not such a message;
                RESOURCE_EXHAUSTED, ``REQUEST_TOO_LARGE``: it would take more than ``most``.
        """
        root, size = self._root, len(data)
        try:
            if root.quick is not None and size <= root.free:
                return root.base + size + root.items(data, 0, size)
            return root.walk(data, 0, size, MAX_LEVELS, root.base + size, most)
        except _TooMuchError:
            raise MeshError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "REQUEST_TOO_LARGE",
                f"the request takes more than {most:,} bytes decoded: send fewer items at once",
            ) from None
        except _BeyondError as error:
            raise InvalidField(".".join(reversed(error.path)), error.text) from None
        except IndexError:
            raise malformed(self._name, "truncated") from None
        except _MalformedError as error:
            raise malformed(self._name, str(error)) from None


@functools.cache
def scanner_of(descriptor: Descriptor, *, texts: bool = True) -> Scanner:
    """Return the scanner of a kind of message."""
    return Scanner(descriptor, texts=texts)


def check_bounds(message: Message) -> None:
    """Check the bounds of a decoded message, such as one of a stream that goes on without it.

    Raises:
        InvalidField: a field is beyond a bound; has its path.
    """
    scanner_of(message.DESCRIPTOR).scan(message.SerializeToString())


def malformed(name: str, why: str) -> MeshError:
    """Return the error of bytes that are not a message of the kind ``name``."""
    return MeshError(
        grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_REQUEST", f"request is not a valid {name}: {why}"
    )


class _Node:
    """One kind of message within a tree of them.

    Args:
        descriptor: the kind of message.
        known: nodes by full name, so that a kind within itself is one node; grows.
        texts: whether to check the lengths of texts.

    Attributes:
        free: largest size that cannot break a bound. Bytes.
        base: what a message takes without the items of its lists and without its texts. Bytes.
        quick: tags of its lists and what an item takes; None where only a walk can count them.
    """

    def __init__(self, descriptor: Descriptor, known: dict[str, _Node], *, texts: bool) -> None:
        known[descriptor.full_name] = self
        self._texts = texts
        self.free = 0  # what a kind within itself sees while this is being made
        self.quick: list[tuple[bytes, int]] | None = None
        self.base = _base(descriptor)
        # By tag: what it is, its counter, how often it may come, and more by what it is.
        self._fields: dict[int, tuple[int, int, int, Any]] = {}
        self._described = dict(enumerate(descriptor.fields, start=_UNKNOWN + 1))
        self._costs = [_UNKNOWN_BYTES] * (len(self._described) + 1)
        free = _MOST_FREE
        for slot, field in self._described.items():
            free = min(free, self._add(slot, field, known))
            self._costs[slot] = _cost(field, known)
        self.free = free
        self.quick = self._quick(known)

    def _quick(self, known: dict[str, _Node]) -> list[tuple[bytes, int]] | None:
        counted = []
        for slot, field in self._described.items():
            inner = field.message_type
            node = None if inner is None else known[inner.full_name]
            if field.number > 15 or (node is not None and node.quick != []):
                return None
            if field.is_repeated and field.type not in _TEXTS and node is None:
                return None  # packed, items have no tags
            if self._costs[slot]:
                counted.append((bytes([field.number << 3 | 2]), self._costs[slot]))
        return counted if len(counted) <= _MOST_COUNTED else None

    def items(self, data: bytes, at: int, end: int) -> int:
        """Return at least what the items in ``data[at:end]`` take decoded: each has its tag."""
        return sum(cost * data.count(tag, at, end) for tag, cost in self.quick or ())

    def _add(self, slot: int, field: FieldDescriptor, known: dict[str, _Node]) -> int:
        """Add a field; return the largest size of a message whose bounds it cannot break."""
        longest, most = _bounds(field)
        tag = field.number << 3
        if field.type in _TEXTS:
            longest = longest if self._texts else sys.maxsize
            self._fields[tag | 2] = _TEXT, slot, most, longest
            return longest if most == 1 else min(longest, 2 * most)  # an item has a tag and a size
        inner = field.message_type
        if inner is not None and field.type == FieldDescriptor.TYPE_MESSAGE:
            node = known.get(inner.full_name) or _Node(inner, known, texts=self._texts)
            self._fields[tag | 2] = _MESSAGE, slot, most, node
            return node.free if most == 1 else min(node.free, 2 * most)
        if field.type == FieldDescriptor.TYPE_GROUP:
            return 0
        width = _WIDTHS.get(field.type, 0)
        if field.is_repeated:
            self._fields[tag | 2] = _PACKED, slot, most, width
        self._fields[tag | _WIRE_TYPES.get(width, 0)] = (_FIXED if width else _VARINT), slot, most, width
        return most if field.is_repeated else _MOST_FREE

    def walk(self, data: bytes, at: int, end: int, levels: int, total: int, most_total: int) -> int:
        """Check ``data[at:end]``; return ``total`` and what its items take decoded.

        Raises:
            _BeyondError: a field is beyond a bound.
            _MalformedError, IndexError: the bytes are not a message.
            _TooMuchError: the total is more than ``most_total``.
        """
        if not levels:
            raise _MalformedError(f"more than {MAX_LEVELS} levels")
        fields = self._fields
        counts = [0] * (len(self._described) + 1)
        while at < end:
            tag = data[at]
            at += 1
            if tag > 0x7F:
                tag, at = _long_tag(data, at, tag)
            known = fields.get(tag)
            if known is None:
                counts[_UNKNOWN] += 1
                if counts[_UNKNOWN] > MAX_UNKNOWN:
                    raise _MalformedError(f"more than {MAX_UNKNOWN} unknown fields in one message")
                at = _skipped(data, at, tag)
                continue
            kind, slot, most, more = known
            if kind != _PACKED:
                if counts[slot] == most:
                    raise self._too_many(slot, most)
                counts[slot] += 1
            if kind <= _PACKED:
                size = data[at]
                at += 1
                if size > 0x7F:
                    size, at = _long_size(data, at, size)
                begin = at
                at += size
                if at > end:
                    raise _MalformedError("truncated")
                if kind == _TEXT:
                    if size > more:
                        raise self._too_long(slot, counts[slot] - 1, more, size)
                elif kind == _MESSAGE:
                    if not size:
                        continue
                    if size <= more.free and more.quick is not None:
                        if more.quick:
                            total += more.items(data, begin, at)
                    else:
                        try:
                            total = more.walk(data, begin, at, levels - 1, total, most_total)
                        except _BeyondError as error:
                            self._locate(
                                error, slot, counts[slot] - 1, data[begin : min(at, begin + _KEY_SEEN)]
                            )
                            raise
                else:
                    counts[slot] += _packed(data, begin, at, more, most)
                    if counts[slot] > most:
                        raise self._too_many(slot, most)
            elif kind == _VARINT:
                at = _after_varint(data, at)
            else:
                at += more
        if at > end:
            raise _MalformedError("truncated")
        total += sum(map(mul, counts, self._costs))
        if total > most_total:
            raise _TooMuchError
        return total

    def _too_many(self, slot: int, most: int) -> _BeyondError:
        field = self._described[slot]
        if not field.is_repeated:
            return _BeyondError("must be given at most once", field.name)
        return _BeyondError(
            f"must be at most {most} {'entries' if _is_map(field) else 'items'}, has more", field.name
        )

    def _too_long(self, slot: int, index: int, longest: int, size: int) -> _BeyondError:
        field = self._described[slot]
        place = f"[{index}]" if field.is_repeated else ""
        return _BeyondError(f"must be at most {longest} bytes, has {size}", field.name + place)

    def _locate(self, error: _BeyondError, slot: int, index: int, inner: bytes) -> None:
        """Add where a message with something beyond a bound is in this one."""
        field = self._described[slot]
        if not _is_map(field):
            error.path.append(field.name + (f"[{index}]" if field.is_repeated else ""))
        elif error.path.pop() == "key":
            error.text = f"each key {error.text}"
            error.path.append(field.name)
        else:
            error.path.append(f"{field.name}[{_key(inner)}]")


def _bounds(field: FieldDescriptor) -> tuple[int, int]:
    """Return the largest text of a field in bytes, and how often the field may come."""
    entry = field.containing_type
    if entry is not None and _is_entry(entry):  # its map states the bounds of keys and values
        around = cast(Descriptor, entry.containing_type)
        stated = next(bounds_of(one) for one in around.fields if one.message_type is entry)
        return (stated.max_key_bytes if field.name == "key" else stated.max_bytes) or UNSTATED, 1
    stated = bounds_of(field)
    most = stated.max_items or stated.max_pairs or UNSTATED
    return stated.max_bytes or UNSTATED, most if field.is_repeated else 1


def _base(message: Descriptor) -> int:
    """Return what a message takes without items and texts; nothing for the entries of maps. Bytes."""
    if _is_entry(message):
        return 0
    size = _MESSAGE_BYTES
    for field in message.fields:
        if field.is_repeated:
            size += _MAP_BYTES if _is_map(field) else _LIST_BYTES
        else:
            size += _TEXT_BYTES if field.type in _TEXTS else _OTHER_BYTES
    return size


def _cost(field: FieldDescriptor, known: Mapping[str, _Node]) -> int:
    """Return what one item of a field takes beside what its message has for the field. Bytes."""
    if _is_map(field):
        return _ENTRY_BYTES
    inner = field.message_type
    if inner is not None:
        return known[inner.full_name].base + _ITEM_BYTES
    if not field.is_repeated:
        return 0
    return _TEXT_ITEM_BYTES if field.type in _TEXTS else _ITEM_BYTES


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and _is_entry(field.message_type)


def _is_entry(message: Descriptor) -> bool:
    return message.GetOptions().map_entry


def _key(entry: bytes) -> str:
    """Return the key of a map's entry for a message: quoted, and cut to 80 characters."""
    text = b""
    if entry[:1] == b"\n":  # field 1, as a text; protobuf writes it first
        size, at = (entry[1], 2) if entry[1] <= 0x7F else _long_size(entry, 2, entry[1])
        text = entry[at : at + size]
    key = text.decode(errors="replace")
    return repr(key if len(key) <= 80 else key[:77] + "...")


def _long_tag(data: bytes, at: int, first: int) -> tuple[int, int]:
    """Return a tag of several bytes, and the place after it."""
    tag, at = _long_size(data, at, first)
    if data[at - 1] == 0 or tag > 0xFFFF_FFFF:
        raise _MalformedError("a tag is not as protobuf writes it")
    return tag, at


def _long_size(data: bytes, at: int, first: int) -> tuple[int, int]:
    """Return a varint of two to five bytes, of which ``first`` is read, and the place after it."""
    value = first & 0x7F
    for shift in (7, 14, 21, 28):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte <= 0x7F:
            return value, at
    raise _MalformedError("a tag or a size has more than 5 bytes")


def _after_varint(data: bytes, at: int) -> int:
    """Return the place after a varint of up to ten bytes."""
    for place in range(at, at + 10):
        if data[place] <= 0x7F:
            return place + 1
    raise _MalformedError("a number has more than 10 bytes")


def _skipped(data: bytes, at: int, tag: int) -> int:
    """Return the place after an unknown field."""
    wire_type = tag & 7
    if tag <= 7 or wire_type not in (0, 1, 2, 5):
        raise _MalformedError("a tag is not as protobuf writes it")
    if wire_type == 0:
        return _after_varint(data, at)
    if wire_type == 2:
        size = data[at]
        at += 1
        if size > 0x7F:
            size, at = _long_size(data, at, size)
        return at + size
    return at + (8 if wire_type == 1 else 4)


def _packed(data: bytes, begin: int, end: int, width: int, most: int) -> int:
    """Return the number of packed numbers; more than ``most`` where these are clearly more."""
    size = end - begin
    if width:
        return size // width
    if size > 10 * most:  # a varint has at most ten bytes
        return most + 1
    return len(data[begin:end].translate(None, _CONTINUED))  # each number ends with a byte below 0x80
