"""When calls are due."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh_core.errors import InvalidInput
from evenmesh_lab.files import FileError
from evenmesh_studies.load.calls.arrivals import poisson, read_trace


@given(st.floats(0.01, 200), st.floats(0.1, 20), st.integers(0, 2**31))
def test_arrivals_rise_within_their_time_and_are_the_same_again(
    rate: float, seconds: float, seed: int
) -> None:
    found = poisson(rate, seconds, seed)
    assert (np.diff(found) >= 0).all()
    assert found.size == 0 or (found[0] >= 0 and found[-1] < seconds)
    assert found.tolist() == poisson(rate, seconds, seed).tolist()


def test_gaps_are_exponential_with_the_rate() -> None:
    gaps = np.diff(poisson(50.0, 2_000.0, 1))
    # Mean 1/λ and standard deviation 1/λ; 100,000 draws stray by a third of a percent each.
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.02)
    assert gaps.std() == pytest.approx(1 / 50, rel=0.02)


def test_a_trace_begins_at_its_first_call_and_is_played_faster(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("at,user\n# noon\n12.5,b\n\n10,a\n14.0,c\n", encoding="utf-8")
    assert read_trace(path).tolist() == [0.0, 12.5 - 10, 14.0 - 10]
    assert read_trace(path, speed=2.0).tolist() == [0.0, (12.5 - 10) / 2, (14.0 - 10) / 2]


def test_a_trace_may_tell_dates(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    path.write_text("2026-11-22T12:00:00+00:00\n2026-11-22T13:00:01+01:00\n", encoding="utf-8")
    assert read_trace(path).tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("text", "message"), [("1\nsoon\n", "line 2"), ("", "no arrival"), ("at\n", "no arrival")]
)
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "trace.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FileError, match=r"no arrival|neither a number of seconds") as raised:
        read_trace(path)
    assert message in str(raised.value) or f":{message[-1]}" in str(raised.value)


@pytest.mark.parametrize("content", [bytes(range(256)), b"1" * 200_000])
def test_a_file_that_is_no_text_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "trace"
    path.write_bytes(content)
    with pytest.raises(FileError, match=r"trace: is not text"):
        read_trace(path)


@pytest.mark.parametrize(("rate", "seconds"), [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0)])
def test_rates_and_times_are_above_nothing(rate: float, seconds: float) -> None:
    with pytest.raises(InvalidInput):
        poisson(rate, seconds, 0)
