"""Coverage of intervals in simulation, in the regimes of reports; ``make statistics`` has all, with more draws."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("evenmesh_evaluator")

from benchmarks.coverage import OTHER, SYSTEM, measure, read_rows, regimes
from evenmesh_core.sparse_means import LEAST_DIFFERING, sparse_interval

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
        "mean EU, of a run, 20 asks, 72% of the values 0",
        "mean over data sets, full minus raft, 5 data sets of 32 to 100 questions",
    ],
)
def test_intervals_hold_the_true_value_about_as_often_as_they_say(name: str) -> None:
    """Four standard errors of 200 draws below 93 %: the area held out to 0 and 1 was at 80 %."""
    found = measure(REGIMES[name], trials=TRIALS, num_resamples=400)
    assert found.undefined <= 0.05
    assert found.held >= 0.93 - 4 * np.sqrt(0.93 * 0.07 / TRIALS)


def populations() -> dict[str, np.ndarray]:
    """Differences that are not 0, of a published study at each dial, and of four made populations."""
    utility = {(row.query_id, row.system, row.alpha): row.eu for row in read_rows()}
    found: dict[str, np.ndarray] = {}
    for alpha in (1.0, 2.0, 4.0, 8.0):
        gaps = [
            value - utility[query, system, None]
            for (query, system, dial), value in utility.items()
            if dial == alpha and system in (SYSTEM, OTHER, "hybrid")
        ]
        found[f"fair-rag at {alpha:g}"] = np.array([one for one in gaps if abs(one) > 1e-9])
    rng = np.random.default_rng(0)
    found["normal"] = rng.normal(size=2000)
    found["exponential"] = rng.exponential(size=2000)
    found["all alike"] = np.array([-0.3])
    found["seven of ten lost"] = np.array([1.0] * 3 + [-1.0] * 7)
    return found


@pytest.mark.parametrize("name", list(populations()))
def test_sparse_intervals_hold_the_mean_of_every_population(name: str) -> None:
    """With 12 to 40 queries of 100 that differ by expectation: three standard errors of 1,500 draws below 93 %.

    Student's t held 84 to 87 % of the fourth and the second at 12. Below 12 no interval is printed.
    """
    rng, shape = np.random.default_rng(1), populations()[name]
    for differing in (LEAST_DIFFERING, 15, 20, 40):
        truth, held, printed = shape.mean() * differing / 100, 0, 0
        for count in rng.binomial(100, differing / 100, 1500).tolist():
            if count >= LEAST_DIFFERING:
                found = sparse_interval(np.concatenate([rng.choice(shape, count), np.zeros(100 - count)]))
                printed += 1
                held += found.low <= truth <= found.high
        assert held / printed >= 0.93 - 3 * np.sqrt(0.93 * 0.07 / printed)
