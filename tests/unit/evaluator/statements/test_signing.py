"""Signatures of statements: the known answer of RFC 8032, DSSE's encoding, and files of keys."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from evenmesh import envelopes
from evenmesh_evaluator.statements.signing import Signer, SigningKeyError


def pem(key: Ed25519PrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    """A private key as a file holds it."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def test_the_encoding_is_that_of_the_specification():
    # The example of DSSE's protocol.md.
    found = envelopes.signed_bytes(b"hello world", "http://example.com/HelloWorld")
    assert found == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"


def test_a_signature_verifies_with_the_public_key_and_names_it(tmp_path: Path):
    # Key of RFC 8032, section 7.1, test 1.
    seed = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    key = Ed25519PrivateKey.from_private_bytes(seed)
    public = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    assert key.public_key().public_bytes_raw().hex() == public
    (tmp_path / "key.pem").write_bytes(pem(key))
    envelope = Signer(tmp_path / "key.pem").sign(b"{}")
    (signature,) = envelope.signatures
    assert (envelope.payload, envelope.payload_type) == (b"{}", envelopes.PAYLOAD_TYPE)
    assert signature.keyid == envelopes.key_id(bytes.fromhex(public))
    key.public_key().verify(signature.sig, envelopes.signed_bytes(b"{}"))


def test_the_secret_of_noise_is_not_the_key(tmp_path: Path):
    keys = [Ed25519PrivateKey.generate() for _ in range(2)]
    secrets = []
    for number, key in enumerate(keys):
        path = tmp_path / f"{number}.pem"
        path.write_bytes(pem(key))
        secrets.append(Signer(path).secret)
    assert len({*secrets, *(key.private_bytes_raw() for key in keys)}) == 4


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file"),
        (b"", "not a private key"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "not a private key"),
        (pem(ec.generate_private_key(ec.SECP256R1())), "must be an Ed25519 key"),
    ],
    ids=["missing", "empty", "damaged", "another kind"],
)
def test_a_file_without_such_a_key_is_refused(tmp_path: Path, content: bytes | None, why: str):
    path = tmp_path / "key.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SigningKeyError, match=why):
        Signer(path)
