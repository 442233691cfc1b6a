"""A statement that is written once for its readers is, byte for byte, the one written for each of them."""

from __future__ import annotations

import json

import pytest
from google.protobuf import json_format

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.wire.errors import InvalidField
from evenmesh_evaluator.domain import Configuration, ProviderDay
from evenmesh_evaluator.statements import codec
from evenmesh_evaluator.statements.summary import Privacy, Window, state

SHOWN = Configuration("c", "r", "x", "g", 2.0, 'a "target" \\ \u00e4\u2028')
DAYS = [ProviderDay(SHOWN, 20_000 + day, 10, 5, 3, 10, 2.0, 1.0, 2.5, 1.0, 0.5, 2.0) for day in range(3)]


@pytest.mark.parametrize("days", [DAYS, []])
@pytest.mark.parametrize("privacy", [Privacy(1), Privacy(1, 1.0, b"secret")])
@pytest.mark.parametrize("nonce", ["", "n-1_Z"])
@pytest.mark.parametrize("at_us", [0, 1_700_000_000_000_000, 1_700_000_000_120_000, 1_700_000_000_123_456])
def test_what_is_issued_is_one_object_with_sorted_names(
    days: list[ProviderDay], privacy: Privacy, nonce: str, at_us: int
) -> None:
    window = Window(20_000, 20_002)
    draft = codec.draft("acme", "pr\u00f6vider", window, state("acme", "p", window, days, privacy), privacy)
    payload = draft.issued(nonce, at_us)
    content = json.loads(payload)
    whole = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    assert payload == whole.encode()
    message = json_format.ParseDict(content, pb.ExposureStatement())
    assert (message.tenant, message.provider, message.nonce) == ("acme", "pr\u00f6vider", nonce)
    assert message.issued_at.ToMicroseconds() == at_us
    assert len(message.configurations) == (1 if days else 0)
    assert message.HasField("epsilon") == (privacy.epsilon is not None)


def test_readers_differ_in_nonce_and_time_alone() -> None:
    window = Window(20_000, 20_002)
    draft = codec.draft("acme", "p", window, state("acme", "p", window, DAYS, Privacy(1)), Privacy(1))
    first, second = (json.loads(draft.issued(*given)) for given in (("a", 1_000_000), ("b", 2_000_000)))
    assert {name for name in first if first[name] != second[name]} == {"nonce", "issuedAt"}
    assert draft.size > 100


@pytest.mark.parametrize(
    ("given", "newest", "expected"),
    [
        ({}, 20_000, Window(19_971, 20_000)),
        ({}, 3, Window(0, 3)),
        ({"last_day": "1970-02-09"}, 20_000, Window(10, 39)),
        ({"first_day": "1970-01-01", "last_day": "1971-02-04"}, 20_000, Window(0, 399)),
        ({"first_day": "2024-10-04"}, 20_000, Window(20_000, 20_000)),
    ],
)
def test_a_window_is_counted_in_days_since_1970(given: dict[str, str], newest: int, expected: Window) -> None:
    assert codec.window(pb.GetExposureStatementRequest(**given), newest=newest) == expected


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"last_day": "2024-10-05"}, "last_day: must be at most 2024-10-04"),
        ({"first_day": "2024-10-05"}, "first_day"),
        ({"first_day": "1970-01-01", "last_day": "1971-02-05"}, "first_day"),
        ({"first_day": "1969-12-31"}, "first_day"),
    ],
)
def test_a_window_that_ends_too_late_or_is_empty_or_too_long_is_refused(
    given: dict[str, str], where: str
) -> None:
    with pytest.raises(InvalidField, match=where):
        codec.window(pb.GetExposureStatementRequest(**given), newest=20_000)
