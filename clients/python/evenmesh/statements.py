"""Verify exposure statements: signature, subject, window, nonce and age.

Needs the package ``cryptography``: ``pip install './clients/python[statements]'``.
"""

import base64
import binascii
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from google.protobuf import json_format

from evenmesh import envelopes
from evenmesh.codec.mapping import decode
from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.types.statements import ExposureStatement, SignedStatement, StatementSignature

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

MAX_BYTES: Final = 4 * 2**20
"""Largest file of a statement, and of keys. Bytes."""
LEEWAY: Final = timedelta(minutes=5)
"""Largest accepted difference of clocks."""
_PEM: Final = re.compile(rb"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----", re.DOTALL)


class StatementError(Exception):
    """Raised for a statement or a key that cannot be relied on; says why."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a statement must be about; None for anything.

    Attributes:
        provider: the provider.
        tenant: the tenant.
        first_day: first day, such as ``2026-11-01``.
        last_day: last day.
        nonce: nonce of the request, by which no earlier statement can stand in for the one asked for.
        max_age: longest time since it was made.
    """

    provider: str | None = None
    tenant: str | None = None
    first_day: str | None = None
    last_day: str | None = None
    nonce: str | None = None
    max_age: timedelta | None = None


def parse(text: str | bytes) -> SignedStatement:
    """Read a signed statement: an envelope of DSSE, or the JSON reply of the gateway that holds one.

    Raises:
        StatementError: it is neither, or was cut.
    """
    try:
        content: Any = json.loads(text)
        content = content.get("envelope", content)
        return SignedStatement(
            base64.b64decode(content["payload"], validate=True),
            str(content["payloadType"]),
            tuple(
                StatementSignature(str(one["keyid"]), base64.b64decode(one["sig"], validate=True))
                for one in content["signatures"]
            ),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, binascii.Error):
        raise StatementError("not a signed statement, or only a part of one") from None


def read(signed: SignedStatement) -> ExposureStatement:
    """Return the content of a statement, without a check of its signature.

    Raises:
        StatementError: the payload is no statement.
    """
    try:
        message = json_format.Parse(signed.payload, pb.ExposureStatement(), ignore_unknown_fields=True)
        return decode(ExposureStatement, message)
    except (json_format.ParseError, ValueError, RecursionError):
        raise StatementError("the payload is no exposure statement") from None


def verify(
    signed: SignedStatement,
    keys: "Mapping[str, Ed25519PublicKey]",
    expected: Expected | None = None,
    *,
    now: datetime | None = None,
) -> ExposureStatement:
    """Return what a statement states, once a known key has signed it and it is the expected one.

    Args:
        signed: the statement.
        keys: public keys by name, see :func:`public_keys`; several while keys change.
        expected: what it must be about.
        now: the time; default: that of this machine.

    Raises:
        StatementError: it was forged, changed or cut, is about something else, or is of another time.
    """
    from cryptography.exceptions import InvalidSignature

    if signed.payload_type != envelopes.PAYLOAD_TYPE:
        raise StatementError(f"not of the type {envelopes.PAYLOAD_TYPE}")
    known = [one for one in signed.signatures if one.keyid in keys]
    if not known:
        raise StatementError("no signature is of a known key")
    try:
        keys[known[0].keyid].verify(known[0].sig, envelopes.signed_bytes(signed.payload, signed.payload_type))
    except InvalidSignature:
        raise StatementError(
            f"the signature of key {known[0].keyid} is not of this statement: it was forged, changed or cut"
        ) from None
    statement = read(signed)
    _check(statement, expected or Expected(), now or datetime.now(UTC))
    return statement


def public_keys(paths: Iterable[Path]) -> "dict[str, Ed25519PublicKey]":
    """Read public keys from PEM files, each with one or several, by their name.

    Raises:
        StatementError: a file holds no Ed25519 public key, or something else beside.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    found = {}
    for path in paths:
        blocks = _PEM.findall(path.read_bytes()[:MAX_BYTES])
        if not blocks:
            raise StatementError(f"{path}: holds no public key in PEM")
        for block in blocks:
            try:
                key = load_pem_public_key(block)
            except (ValueError, UnsupportedAlgorithm):
                raise StatementError(f"{path}: holds a public key that cannot be read") from None
            if not isinstance(key, Ed25519PublicKey):
                raise StatementError(f"{path}: holds a key that is not Ed25519")
            found[envelopes.key_id(key.public_bytes_raw())] = key
    return found


def new_key(path: Path) -> tuple[str, str]:
    """Make a private key in a new file that only its user can read; return its name and its public key.

    Raises:
        FileExistsError: there is such a file.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    key = Ed25519PrivateKey.generate()
    content = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    public = key.public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    return envelopes.key_id(public.public_bytes_raw()), pem


def _check(statement: ExposureStatement, expected: Expected, now: datetime) -> None:
    for name in ("provider", "tenant", "first_day", "last_day"):
        wanted, stated = getattr(expected, name), getattr(statement, name)
        if wanted is not None and wanted != stated:
            raise StatementError(f"{name}: is {stated!r}, not {wanted!r}")
    if expected.nonce is not None and expected.nonce != statement.nonce:
        raise StatementError("nonce: is that of another request: an earlier statement may stand in for it")
    if statement.issued_at > now + LEEWAY:
        raise StatementError(f"issued_at: is in the future, {statement.issued_at.isoformat()}")
    if expected.max_age is not None and statement.issued_at < now - expected.max_age - LEEWAY:
        raise StatementError(f"issued_at: is too long ago, {statement.issued_at.isoformat()}")
