"""Compare each fairness dial with the deterministic ranking, query by query.

    python examples/studies/price_of_fairness.py OUT/run/report/MODEL-utility.csv

Read the rows of an audit's report, one for each query, system and α, and print a table: the mean difference
of expected utility (not normalised) from the same system without sampling, its 95 % interval over queries
(BCa bootstrap, or Student's t where at least half of the differences are 0), and the numbers of queries in
which it is higher and lower.
"""

import argparse
import csv
from pathlib import Path

import numpy as np

from evenmesh_core.intervals import mean_interval, student_interval


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=Path, help="MODEL-utility.csv of a report")
    with parser.parse_args().rows.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    utility = {(row["query_id"], row["system"], row["alpha"]): float(row["eu"]) for row in rows if row["eu"]}
    systems = list(dict.fromkeys(row["system"] for row in rows))
    alphas = sorted({row["alpha"] for row in rows if row["alpha"]}, key=float)
    print("| system | α | queries | EU minus that without sampling | higher | lower |")
    print("|---|---|---|---|---|---|")
    for system in systems:
        for alpha in alphas:
            pairs = [
                (value, utility[query, system, ""])
                for (query, name, dial), value in utility.items()
                if (name, dial) == (system, alpha) and (query, system, "") in utility
            ]
            if not pairs:
                continue
            gained = np.array([sampled - plain for sampled, plain in pairs])
            sparse = 2 * np.count_nonzero(gained == 0) >= len(gained)
            mean = student_interval(gained) if sparse else mean_interval(gained, rng=0)
            cost = f"{mean.value:.4f} [{mean.low:.4f}, {mean.high:.4f}]"
            higher, lower = (gained > 1e-9).sum(), (gained < -1e-9).sum()
            print(f"| {system} | {float(alpha):g} | {len(gained)} | {cost} | {higher} | {lower} |")


if __name__ == "__main__":
    main()
