"""What a statement shows, on the screen and on its page."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from evenmesh.commands.statement_view import COLUMNS, caveats, page, rows
from evenmesh.types.reports import Configuration, Estimate
from evenmesh.types.statements import ExposureStatement, ProviderExposure, SignedStatement, StatementSignature


def _stated(
    provider: str = "Acme", left_out: int | None = 0, epsilon: float | None = None
) -> ExposureStatement:
    exposure = ProviderExposure(
        Configuration(collection="zoo", retriever="bm25", alpha=2.0),
        num_found=1_234,
        num_shown=600,
        num_cited=7,
        exposure=Estimate(0.25, 0.2, 0.301, 1_234, 0),
        target=Estimate(0.5, None, None, 1, 0),
        owed=Estimate(None, None, None, 0, 1),
    )
    issued = datetime(2026, 12, 1, 6, 30, tzinfo=UTC)
    return ExposureStatement(
        "t", provider, "2026-11-01", "2026-11-30", issued, "n1", (exposure,), left_out, 20, epsilon
    )


def test_a_row_has_counts_and_shares_with_the_intervals_that_are_known() -> None:
    (row,) = rows(_stated())
    assert dict(zip(COLUMNS, row, strict=True)) == {
        "configuration": "zoo · bm25 · α = 2",
        "found": "1,234",
        "shown": "600",
        "cited": "7",
        "exposure": "25.0% (20.0% to 30.1%)",
        "target": "50.0%",
        "owed": "–",
    }


@pytest.mark.parametrize(
    ("left_out", "epsilon", "says"),
    [
        (3, None, "fewer than 20 asks are left out; 3 are. Issued"),
        (None, 0.5, "noise for privacy, budget 0.5"),
    ],
)
def test_a_reader_learns_what_is_left_out_and_what_is_noise(
    left_out: int | None, epsilon: float | None, says: str
) -> None:
    assert says in caveats(_stated(left_out=left_out, epsilon=epsilon))


def test_a_page_has_every_row_and_no_markup_of_the_provider() -> None:
    signed = SignedStatement(b"{}", "kind", (StatementSignature("key-1", b""),))
    markup = page(_stated("<b>Acme</b>"), signed)
    assert "&lt;b&gt;Acme&lt;/b&gt;" in markup
    assert "<b>" not in markup
    assert all(f"<td>{cell}</td>" in markup for row in rows(_stated()) for cell in row)
    assert "<code>key-1</code>" in markup
