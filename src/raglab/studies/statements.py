"""What the numbers of a study stand on, in one line for its figures and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raglab.studies.conversation import ConversationStudy
from raglab.studies.eor import EorStudy, SettingFindings
from raglab.studies.exposure import ExposureRow, ExposureStudy
from raglab.studies.inconsistency import InconsistencyStudy
from raglab.studies.uncertainty import Bootstrap
from raglab.studies.utility import UtilityRow, UtilityStudy
from raglab.studies.vote import VoteStudy


def statement(
    study: ExposureStudy | UtilityStudy | ConversationStudy | VoteStudy | InconsistencyStudy | EorStudy,
) -> str:
    """How many queries and samples a study looked at, and how its intervals are computed."""
    return "; ".join((*_counts(study), intervals(study.bootstrap)))


def intervals(bootstrap: Bootstrap) -> str:
    """How intervals are computed."""
    return (
        f"{bootstrap.level:.0%} intervals, {bootstrap.method} bootstrap over queries, "
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
            yield "N: " + ", ".join(map(_split, study.names, study.settings))
            yield f"{len(study.settings[0].vote.retrievers)} retrievers"
            yield f"answers judged by {study.judge}"
            yield f"vote by {study.settings[0].vote.pooling}"


def _split(name: str, one: SettingFindings) -> str:
    return f"{name} {one.num_train:,} train, {one.num_test:,} test"


def _rankings(rows: Sequence[ExposureRow] | Sequence[UtilityRow]) -> str:
    """Queries, and rankings of each at each α."""
    drawn = sorted({row.num_rankings for row in rows if row.alpha is not None})
    words = f"{len({row.query_id for row in rows}):,} queries"
    if not drawn:
        return words
    least, most = drawn[0], drawn[-1]
    return (
        f"{words}, N = {most:,} rankings at each α"
        if least == most
        else (f"{words}, N = {least:,} to {most:,} rankings at each α")
    )
