"""Requests as bytes, made from the protos' descriptors: what no client of ours would send.

Messages are written as they travel, so that text may be no UTF-8, a field may have another's wire type, an
enum a number that nobody declared, and a oneof more than one member. All choices are drawn from one
``random.Random``: hypothesis gives its own, which it can shrink, and long runs give a seeded one.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from random import Random
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DEEPEST: Final = 5
_FEW: Final = (0, 1, 1, 1, 2, 2, 3, 5)

TEXTS: Final[Sequence[bytes]] = (
    b"",
    b" \t\n",
    b"\x00",
    b"a\x00b",
    b"x\x1b[31m\r\n",
    b"\xff\xfe",  # no UTF-8 from here
    b"\xed\xa0\x80",
    b"\xc0\x80",
    b"\xf4\x90\x80\x80",
    b"ab\xe2\x82",
    "\u202eevil\u2066".encode(),
    "e\u0301\u0301\u0301 😀 ẞ İ ﷺ".encode(),
    b"{{ 7 * 7 }} {% for x in y %} {# #}",
    b"</s><pad><unk>[SEP][CLS]<|assistant|>True",
    b"../../../etc/passwd",
    b"'; DROP TABLE feedback; --",
    b"%s%n{0}{}$(id)`id`",
    b'{"a": [1, {"b": null}]}',
    b"nan",
    b"-1",
    b"1e999999999",
    b"9" * 5000,
    b"demo",
    b"bm25",
    b"none",
    b"rankrag",
    b"token_f1",
    b"Lexical@2&Other@RR@1",
    b"((((((((((Lexical))))))))))",
    b"english",
    b"tiny",
    b"a" * 65,
    b"a" * 257,
    b"b" * 1025,
    b"c d " * 2_100,
    "ü".encode() * 40_000,
)
"""Texts that something may trip over; some are no UTF-8, and some are longer than any bound."""

INTEGERS: Final = (
    0,
    1,
    2,
    3,
    5,
    16,
    100,
    101,
    1000,
    1001,
    4096,
    4097,
    65_536,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
"""Numbers on either side of bounds, as they are on the wire: the last ones are negative where signed."""

DOUBLES: Final = (
    0.0,
    -0.0,
    1.0,
    0.5,
    2.0,
    100.0,
    1000.0,
    -1.0,
    1 + 2**-52,
    5e-324,
    1e-300,
    1e300,
    1.7976931348623157e308,
    -1.7976931348623157e308,
    math.inf,
    -math.inf,
    math.nan,
)


def message(descriptor: Descriptor, rng: Random, *, density: float = 0.4, depth: int = 0) -> bytes:
    """A message of the descriptor's fields, each there with probability ``density``, its values extreme."""
    parts: list[bytes] = []
    for field in descriptor.fields:
        if rng.random() < density:
            parts.append(occurrences(field, rng, density=density, depth=depth))
    if rng.random() < 0.03:  # a field that this version does not know
        parts.append(_tagged(rng.choice((19, 536_870_911, 77)), _BYTES, _sized(text(rng))))
    if rng.random() < 0.1:
        rng.shuffle(parts)
    return b"".join(parts)


def occurrences(field: FieldDescriptor, rng: Random, *, density: float = 0.4, depth: int = 0) -> bytes:
    """The field, as often as it may be, or oftener."""
    if not _repeated(field):
        times = 2 if rng.random() < 0.03 else 1
        return b"".join(_one(field, rng, density, depth) for _ in range(times))
    count = rng.choice(_FEW)
    if rng.random() < 0.02 and depth < 2:
        count = rng.choice((17, 101, 257, 1001))
    if field.type in _SCALARS and rng.random() < 0.5:
        packed = b"".join(_scalar(field, rng)[1] for _ in range(count))
        return _tagged(field.number, _BYTES, _sized(packed))
    if count > 5:  # the same again and again: it is the number that matters
        return _one(field, rng, density, depth + 1) * count
    return b"".join(_one(field, rng, density, depth) for _ in range(count))


def single(descriptor: Descriptor, rng: Random, depth: int = 0) -> bytes:
    """One field of the message, or of a message somewhere in it, with an extreme value."""
    if not descriptor.fields:
        return b""
    field = rng.choice(descriptor.fields)
    if field.message_type is not None and depth < 2 * _DEEPEST:
        inner = single(field.message_type, rng, depth + 1)
        return _tagged(field.number, _BYTES, _sized(inner))
    if field.type == FieldDescriptor.TYPE_STRING:
        return _tagged(field.number, _BYTES, _sized(rng.choice(TEXTS)))
    return _tagged(field.number, *_scalar(field, rng))


def mutated(data: bytes, rng: Random) -> bytes:
    """The same bytes with some of them changed, cut off or there twice."""
    if not data:
        return rng.choice((b"\x00", b"\x0a", b"\xff\xff\xff\xff\xff\x0f", b"\x0b\x0b\x0b\x0b"))
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        place = rng.randrange(len(changed)) if changed else 0
        match rng.randrange(5):
            case 0 if changed:
                changed[place] ^= 1 << rng.randrange(8)
            case 1 if changed:
                changed[place] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                del changed[place:]
            case 3:
                end = min(len(changed), place + rng.choice((1, 4, 64)))
                changed[place:place] = changed[place:end]
            case _:
                changed[place:place] = rng.randbytes(rng.choice((1, 2, 9)))
    return bytes(changed)


def text(rng: Random) -> bytes:
    """Text, or what pretends to be."""
    roll = rng.random()
    if roll < 0.003:
        return rng.choice((b"m", b"x y ", b"\n")) * 400_000
    if roll < 0.6:
        return rng.choice(TEXTS[:32])
    if roll < 0.65:
        return rng.choice(TEXTS)
    if roll < 0.8:
        return rng.randbytes(rng.choice((1, 3, 20)))
    return "".join(
        chr(rng.choice((97, 98, 32, 0xE9, 0x4E2D, 0x1F600))) for _ in range(rng.choice((1, 5, 40)))
    ).encode()


def _one(field: FieldDescriptor, rng: Random, density: float, depth: int) -> bytes:
    if rng.random() < 0.01:  # another's wire type
        return _tagged(
            field.number,
            *rng.choice(((_VARINT, _varint(7)), (_FIXED64, b"\x00" * 8), (_FIXED32, b"\xff" * 4))),
        )
    if field.message_type is not None:
        inner = (
            message(field.message_type, rng, density=density, depth=depth + 1) if depth < _DEEPEST else b""
        )
        return _tagged(field.number, _BYTES, _sized(inner))
    kind, value = _scalar(field, rng)
    return _tagged(field.number, kind, value)


def _scalar(field: FieldDescriptor, rng: Random) -> tuple[int, bytes]:
    match field.type:
        case FieldDescriptor.TYPE_STRING | FieldDescriptor.TYPE_BYTES:
            return _BYTES, _sized(text(rng))
        case FieldDescriptor.TYPE_DOUBLE:
            value = rng.choice(DOUBLES) if rng.random() < 0.7 else rng.random()
            return _FIXED64, struct.pack("<d", value)
        case FieldDescriptor.TYPE_BOOL:
            return _VARINT, _varint(rng.choice((0, 1, 1, 2**64 - 1)))
        case FieldDescriptor.TYPE_ENUM:
            declared = [one.number for one in field.enum_type.values]
            return _VARINT, _varint(rng.choice((*declared, *declared, 99, 2**31 - 1, 2**64 - 1)))
        case _:
            return _VARINT, _varint(rng.choice(INTEGERS) if rng.random() < 0.7 else rng.randrange(10))


_SCALARS: Final = frozenset(
    {
        FieldDescriptor.TYPE_DOUBLE,
        FieldDescriptor.TYPE_BOOL,
        FieldDescriptor.TYPE_ENUM,
        FieldDescriptor.TYPE_INT32,
        FieldDescriptor.TYPE_INT64,
        FieldDescriptor.TYPE_UINT32,
        FieldDescriptor.TYPE_UINT64,
    }
)


def _repeated(field: Any) -> bool:
    return bool(field.is_repeated)


def _tagged(number: int, kind: int, payload: bytes) -> bytes:
    return _varint(number << 3 | kind) + payload


def _sized(payload: bytes) -> bytes:
    return _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    out = bytearray()
    while True:
        low = value & 0x7F
        value >>= 7
        out.append(low | (0x80 if value else 0))
        if not value:
            return bytes(out)
