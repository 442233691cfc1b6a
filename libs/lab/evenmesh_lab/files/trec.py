"""Runs and judgements in the formats of TREC.

A line of a run is ``QUERY Q0 PASSAGE RANK SCORE TAG``. trec_eval ranks by falling score, breaks ties by
falling passage id, and never reads the rank. Here the score decides too, but score and rank must not
contradict each other (the intended one is unknown); where scores tie the rank decides, and
where ranks tie as well the ascending passage id: a run of sampled rankings may carry one score throughout and
mean its ranks.

The tag is the system's name, and may say more: ``SYSTEM/alpha=2/sample=17``. The lines of one query and tag
are one ranking and stand together. The query may name the sample instead, ``QUERY/sample=17``, as an exported
run has it, in which tools of others take each ranking for one of a query of its own.

A line of judgements (qrels) is ``QUERY ITERATION PASSAGE GRADE``; negative grades (junk) are 0, not useful.
"""

from __future__ import annotations

import itertools
import math
import re
import reprlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from evenmesh_lab.files.failure import FileError
from evenmesh_lab.files.lines import lines, raw_lines

_TAG: Final = re.compile(r"(?P<system>.+?)(?:/alpha=(?P<alpha>[^/]+))?(?:/sample=(?P<sample>\d{1,18}))?")


_SAMPLE: Final = "/sample="


class TrecRanking(NamedTuple):
    """One ranking of a run."""

    query_id: str
    system: str
    alpha: float | None
    sample: int | None
    ranking: list[str]
    """Passage ids, best first."""


class _Line(NamedTuple):
    falling_score: float
    rank: int
    passage: str
    number: int


def read_run(path: Path) -> Iterator[tuple[int, TrecRanking]]:
    """Yield the rankings of a run, in the order of the file, each with the number of its first line.

    Raises:
        FileError: not six columns, a rank or score that is not a finite number, a tag's alpha outside
            [0, 100], rank and score that contradict each other, a passage twice in a ranking, or lines of one
            ranking that are apart.
    """
    open_key: tuple[str, str] | None = None
    block: list[_Line] = []
    closed: dict[str, set[str]] = {}
    for number, line in lines(path):
        columns = line.split()
        if len(columns) != 6:
            raise FileError(
                path, number, f"has {len(columns)} columns instead of 6: QUERY Q0 PASSAGE RANK SCORE TAG"
            )
        query, _, passage, rank, score, tag = columns
        if (query, tag) != open_key:
            if open_key is not None:
                yield block[0].number, _ranking(path, *open_key, block)
            tags = closed.setdefault(query, set())
            if tag in tags:
                raise FileError(
                    path, number, f"goes back to query {query!r} of {tag!r}, whose lines ended before"
                )
            tags.add(tag)
            open_key, block = (query, tag), []
        block.append(_Line(-_score(path, number, score), _rank(path, number, rank), passage, number))
    if open_key is not None:
        yield block[0].number, _ranking(path, *open_key, block)


def read_qrels(path: Path) -> Iterator[tuple[int, str, str, float]]:
    """Yield the judgements of a qrels file: line, query, passage and grade from 0.

    Raises:
        FileError: not four columns, or a grade that is not a whole number.
    """
    for number, line in lines(path):
        columns = line.split()
        if len(columns) != 4:
            raise FileError(
                path, number, f"has {len(columns)} columns instead of 4: QUERY ITERATION PASSAGE GRADE"
            )
        query, _, passage, grade = columns
        try:
            whole = float(max(int(grade), 0))
        except (ValueError, OverflowError) as exc:
            raise FileError(path, number, f"grade is {reprlib.repr(grade)}, not a whole number") from exc
        yield number, query, passage, whole


def sample_of(query: str) -> tuple[str, str | None]:
    """Return the query and the number of the sample that an exported query's name has; None: no sample."""
    name, separator, sample = query.rpartition(_SAMPLE)
    return (
        (name, sample) if separator and name and sample.isdecimal() and len(sample) <= 18 else (query, None)
    )


def query_ids(path: Path) -> Iterator[bytes]:
    """Yield the query of each line of a run."""
    for _, raw in raw_lines(path):
        name, _ = sample_of(raw.split(None, 1)[0].decode("utf-8", "surrogateescape"))
        yield name.encode("utf-8", "surrogateescape")


def _ranking(path: Path, query: str, tag: str, block: list[_Line]) -> TrecRanking:
    first: dict[str, int] = {}
    for line in block:
        if first.setdefault(line.passage, line.number) != line.number:
            raise FileError(
                path, line.number, f"ranks {line.passage!r} again, which line {first[line.passage]} has"
            )
    ordered = sorted(block)
    for better, worse in itertools.pairwise(ordered):
        if worse.rank < better.rank:
            raise FileError(
                path,
                worse.number,
                f"ranks {worse.passage!r} above that of line {better.number}, but scores it below",
            )
    matched = _TAG.fullmatch(tag)
    system, alpha, sample = matched.group("system", "alpha", "sample") if matched else (tag, None, None)
    name, own = sample_of(query)
    sample = own if sample is None else sample
    return TrecRanking(
        name,
        system,
        None if alpha is None else _alpha(path, block[0].number, alpha),
        None if sample is None else int(sample),
        [line.passage for line in ordered],
    )


def _score(path: Path, number: int, text: str) -> float:
    try:
        score = float(text)
    except ValueError as exc:
        raise FileError(path, number, f"score is {text!r}, not a number") from exc
    if not math.isfinite(score):
        raise FileError(path, number, f"score is {text!r}, not a finite number")
    return score


def _rank(path: Path, number: int, text: str) -> int:
    try:
        return int(text)
    except ValueError as exc:
        raise FileError(path, number, f"rank is {reprlib.repr(text)}, not a whole number") from exc


def _alpha(path: Path, number: int, text: str) -> float:
    try:
        alpha = float(text)
    except ValueError as exc:
        raise FileError(path, number, f"alpha is {text!r}, not a number") from exc
    if not 0 <= alpha <= 100:
        raise FileError(path, number, f"alpha is {text}; allowed: 0 to 100")
    return alpha
