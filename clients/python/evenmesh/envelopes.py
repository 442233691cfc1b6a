"""Signed statements in the form of DSSE 1.0: what is signed, and how keys are named.

Source: https://github.com/secure-systems-lab/dsse/blob/v1.0.0/protocol.md
"""

import hashlib
from typing import Final

PAYLOAD_TYPE: Final = "application/vnd.evenmesh.exposure-statement.v1+json"
"""Type of a payload that is an exposure statement."""


def signed_bytes(payload: bytes, payload_type: str = PAYLOAD_TYPE) -> bytes:
    """Return what a signature is about: DSSE's pre-authentication encoding of type and payload."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def key_id(public_key: bytes) -> str:
    """Return the name of an Ed25519 key: the first 16 hexadecimal digits of the SHA-256 of its 32 bytes."""
    return hashlib.sha256(public_key).hexdigest()[:16]
