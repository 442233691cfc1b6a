"""Coverage of intervals in simulation, in the regimes of reports; ``make statistics`` has all, with more draws."""

import numpy as np
import pytest

from benchmarks.coverage import measure, read_rows, regimes

TRIALS = 200
REGIMES = {f"{one.quantity}, {one.data}": one for one in regimes(read_rows())}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "difference of two shares, 100 queries, only the first right on 2.5%, only the second on 2.5%",
        "AUC of EE-R over EE-D, 100 queries at 5 dials",
        "AUC of EU over EE-D, 40 queries at 5 dials",
        "difference of AUC of EU over EE-D, 40 queries at 5 dials, two systems",
        "mean EU minus that without sampling, 100 queries, 77% of the values 0",
    ],
)
def test_intervals_hold_the_true_value_about_as_often_as_they_say(name: str) -> None:
    """Four standard errors of 200 draws below 93 %: the area held out to 0 and 1 was at 80 %."""
    found = measure(REGIMES[name], trials=TRIALS, num_resamples=400)
    assert found.undefined == 0
    assert found.held >= 0.93 - 4 * np.sqrt(0.93 * 0.07 / TRIALS)
