"""The basis of a study's numbers, in one line for its figures and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evenmesh_lab.studies.conversation import ConversationStudy
from evenmesh_lab.studies.eor import EorStudy
from evenmesh_lab.studies.exposure import ExposureRow, ExposureStudy
from evenmesh_lab.studies.inconsistency import InconsistencyStudy
from evenmesh_lab.studies.uncertainty import LEAST_BOOTSTRAPPED, Bootstrap
from evenmesh_lab.studies.utility import UtilityRow, UtilityStudy
from evenmesh_lab.studies.vote import VoteStudy


def statement(
    study: ExposureStudy | UtilityStudy | ConversationStudy | VoteStudy | InconsistencyStudy | EorStudy,
) -> str:
    """State the queries and samples of a study, and the method of its intervals."""
    return "; ".join((*_counts(study), intervals(study.bootstrap)))


def intervals(bootstrap: Bootstrap, over: str = "queries") -> str:
    """State the method of the intervals: of few queries and of shares it is no bootstrap."""
    return (
        f"{bootstrap.level:.0%} intervals: Student's t of fewer than {LEAST_BOOTSTRAPPED} {over}, score "
        f"intervals of shares, else {bootstrap.method} bootstrap over {over}, "
        f"{bootstrap.num_resamples:,} resamples, seed {bootstrap.seed}"
    )


def _counts(
    study: ExposureStudy | UtilityStudy | ConversationStudy | VoteStudy | InconsistencyStudy | EorStudy,
) -> Iterable[str]:
    match study:
        case ExposureStudy() | UtilityStudy():
            yield _rankings(study.rows)
            yield f"k = {study.k}"
        case ConversationStudy():
            yield f"N = {len(study.rows):,} conversations"
        case VoteStudy():
            yield f"N = {len({row.query_id for row in study.rows}):,} queries"
            yield f"{len(study.retrievers)} retrievers"
        case InconsistencyStudy():
            yield f"N = {len(set(study.query_ids)):,} queries, {len(study.retrievers)} retrievers"
            yield f"answers judged by {study.judge}"
        case EorStudy():
            named = zip(study.names, study.settings, strict=True)
            yield "N: " + ", ".join(
                f"{name} {one.num_train:,} train, {one.num_test:,} test" for name, one in named
            )
            yield f"{len(study.settings[0].vote.retrievers)} retrievers"
            yield f"answers judged by {study.judge}"
            yield f"vote by {study.settings[0].vote.pooling}"


def _rankings(rows: Sequence[ExposureRow] | Sequence[UtilityRow]) -> str:
    """State the number of queries, and of rankings at each α."""
    drawn = sorted({row.num_rankings for row in rows if row.alpha is not None})
    words = f"{len({row.query_id for row in rows}):,} queries"
    if not drawn:
        return words
    least, most = drawn[0], drawn[-1]
    count = f"{most:,}" if least == most else f"{least:,} to {most:,}"
    return f"{words}, N = {count} rankings at each α"
