"""Statements about single providers, and what providers are owed."""

import base64
import json
from dataclasses import dataclass
from datetime import datetime

from evenmesh.types.reports import Configuration, Estimate


@dataclass(frozen=True, slots=True)
class StatementSignature:
    """A signature: the name of the key, and Ed25519's 64 bytes."""

    keyid: str
    sig: bytes


@dataclass(frozen=True, slots=True)
class SignedStatement:
    """A statement as it was signed; :func:`evenmesh.statements.verify` says what it states.

    Attributes:
        payload: the statement as JSON.
        payload_type: kind of the payload.
        signatures: of type and payload.
    """

    payload: bytes
    payload_type: str
    signatures: tuple[StatementSignature, ...]

    def to_json(self) -> str:
        """Return it as an envelope of DSSE 1.0, one JSON object."""
        return json.dumps(
            {
                "payloadType": self.payload_type,
                "payload": base64.b64encode(self.payload).decode(),
                "signatures": [
                    {"keyid": one.keyid, "sig": base64.b64encode(one.sig).decode()} for one in self.signatures
                ],
            },
            indent=2,
        )


@dataclass(frozen=True, slots=True)
class ProviderExposure:
    """Exposure that one configuration gave a provider.

    Attributes:
        configuration: options that the asks have in common.
        num_found: asks that found a passage of the provider.
        num_shown: asks that showed one to the model.
        num_cited: asks with an answer that cites one.
        exposure: part of the context that was the provider's, per ask that found it, 0 to 1.
        target: part that it deserved in proportion to merit, per ask with known merit, 0 to 1.
        owed: target minus exposure, -1 to 1; above 0 the provider is owed exposure.
    """

    configuration: Configuration
    num_found: int
    num_shown: int
    num_cited: int
    exposure: Estimate
    target: Estimate
    owed: Estimate


@dataclass(frozen=True, slots=True)
class ExposureStatement:
    """Exposure that one provider deserved and was given.

    Attributes:
        tenant: whose asks it is about.
        provider: the provider.
        first_day: first day, UTC, such as ``2026-11-01``.
        last_day: last day, UTC.
        issued_at: when it was made, UTC.
        nonce: that of the request.
        configurations: exposure by configuration, most asks first; at most 100.
        num_left_out: configurations left out; None with noise.
        min_asks: fewest asks that a configuration is stated with.
        epsilon: privacy budget of one ask on each day; None without noise.
    """

    tenant: str
    provider: str
    first_day: str
    last_day: str
    issued_at: datetime
    nonce: str
    configurations: tuple[ProviderExposure, ...]
    num_left_out: int | None
    min_asks: int
    epsilon: float | None


@dataclass(frozen=True, slots=True)
class ProviderBalance:
    """Exposure that a provider deserved and was given, in contexts, faded by age."""

    provider: str
    target: float
    exposure: float

    @property
    def owed(self) -> float:
        """Target minus exposure."""
        return self.target - self.exposure
