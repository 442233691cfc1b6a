"""Compute the exposure of every first stage and dial, a data set at a time, and write the tables.

What is there of a data set is not computed again; ``--again`` does. Ten minutes on two cores.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchmarks import command, csv_rows
from benchmarks.exposure_study import measures, track
from benchmarks.exposure_study.sets import SETS

OUT: Final = Path(__file__).resolve().parents[2] / "docs" / "studies" / "exposure"
TRACK: Final = "trec-fair-2019"


def main() -> None:
    """Compute what is missing."""
    parser = command.parser("exposure_study", __doc__)
    names = [*SETS, TRACK]
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"of {', '.join(names)}; default: all")
    parser.add_argument(
        "--home", type=Path, default=Path("build/rerank-table"), help="where vectors are kept"
    )
    parser.add_argument("--again", action="store_true", help="compute what is there, too")
    given = parser.parse_args()
    if unknown := sorted(set(given.sets) - set(names)):
        parser.error(f"no such set: {', '.join(unknown)}; there are {', '.join(names)}")
    summary = csv_rows.read(OUT / "summary.csv")
    for name in given.sets or names:
        if name == TRACK:
            if given.again or not csv_rows.read(OUT / "track.csv"):
                csv_rows.write(OUT / "track.csv", track.compared((track.BY_ID, *measures.ALPHAS)))
        elif given.again or not any(row["data"] == name for row in summary):
            systems = SETS[name](given.home)
            found = measures.compared(name, systems)
            if name == "grep-biasir":
                csv_rows.write(OUT / "groups.csv", measures.gaps(systems))
            kept = {row["data"]: [one for one in summary if one["data"] == row["data"]] for row in summary}
            kept[name] = [{column: csv_rows.cell(value) for column, value in row.items()} for row in found]
            summary = [row for one in SETS if one in kept for row in kept[one]]
            csv_rows.write(OUT / "summary.csv", summary)
        print(f"{name} is done", flush=True)


if __name__ == "__main__":
    main()
