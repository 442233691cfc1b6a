"""Sign statements with Ed25519 (RFC 8032), in the form of DSSE 1.0."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from evenmesh import envelopes
from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.wire.file_watch import WatchedFiles


class SigningKeyError(Exception):
    """Raised for a file that holds no Ed25519 private key; names it and says why."""


class Signer:
    """Signs with the key of a file, which is read again when it changes.

    Args:
        path: PEM file of an Ed25519 private key, PKCS 8, without a password.

    Raises:
        SigningKeyError: the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.file = WatchedFiles((path,), partial(_read, path), SigningKeyError)

    @property
    def secret(self) -> bytes:
        """Bytes that nobody can know without the key, for noise."""
        return self.file.content().secret

    def sign(self, payload: bytes) -> pb.StatementEnvelope:
        """Return a statement with its signature."""
        key = self.file.content()
        signature = pb.StatementSignature(keyid=key.name, sig=key.key.sign(envelopes.signed_bytes(payload)))
        return pb.StatementEnvelope(
            payload=payload, payload_type=envelopes.PAYLOAD_TYPE, signatures=[signature]
        )


@dataclass(frozen=True, eq=False)
class _Key:
    """A key with what is derived from it."""

    key: Ed25519PrivateKey
    name: str
    secret: bytes


def _read(path: Path) -> _Key:
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except OSError as error:
        raise SigningKeyError(f"{path}: {error.strerror}") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise SigningKeyError(f"{path}: not a private key in PEM without a password") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise SigningKeyError(f"{path}: must be an Ed25519 key: make one with `evenmesh statement key`")
    name = envelopes.key_id(key.public_key().public_bytes_raw())
    secret = hashlib.sha256(b"evenmesh statement noise\0" + key.private_bytes_raw()).digest()
    return _Key(key, name, secret)
