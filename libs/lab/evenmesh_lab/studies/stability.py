"""The stability study: whether conversations are useful, recover, and have the same outcome when repeated.

Source: Sakai 2023, §5, figures 2 to 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from evenmesh_core.intervals import BootstrapInterval
from evenmesh_lab.studies.tables import Column, Table, text
from evenmesh_lab.studies.uncertainty import UNIT, Bootstrap

Marks = tuple[bool | None, ...]
"""For each system turn whether it looked useful; None where it is not marked."""


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One system's conversations on all topics, held once.

    Shares are of topics, ``nan`` where there are none.
    """

    system: str
    trial: int
    num_topics: int
    useful: tuple[BootstrapInterval, ...]
    """%useful of each turn: topics whose turn looked useful; a turn that a breakdown prevented did not."""
    mean_useful: BootstrapInterval
    """ave%useful: mean over the turns."""
    breakdowns: BootstrapInterval
    """Topics whose conversation ended before its last turn."""
    num_unsuccessful: int
    """Topics whose first turn was not useful."""
    recovery: float
    """%recovery: of these, those whose second turn was."""


@dataclass(frozen=True, slots=True)
class StabilityRow:
    """One system's trials against each other."""

    system: str
    num_trials: int
    num_topics: int
    """Topics that all trials have."""
    alike: BootstrapInterval
    """Topics whose turns came out alike, useful or not, in all trials."""
    agreement: float
    """Mean over pairs of trials of the share of turns that came out alike."""
    overlap: BootstrapInterval
    """Mean over pairs of trials of the relevant entities that both name, of those that either does (Jaccard);
    undefined where neither names any."""
    relevance_spread: float
    """Standard deviation of R between the trials of a topic: root of the mean variance over topics."""
    fairness_spread: float
    """Standard deviation of GF, likewise."""


@dataclass(frozen=True, slots=True)
class StabilityStudy:
    """Results of the study."""

    num_turns: int
    bootstrap: Bootstrap
    trials: tuple[TrialRow, ...]
    stability: tuple[StabilityRow, ...]
    """Stability of the systems with more than one trial."""
    patterns: Mapping[str, Mapping[int, Mapping[str, Marks]]]
    """By system, trial and topic."""

    def tables(self) -> tuple[Table, ...]:
        """Return trials, stability, and each conversation, in this order."""
        return tuple(table for table in _tables(self) if table.rows)


@dataclass(frozen=True, slots=True)
class ConversationJudgement:
    """Judgements of an annotated conversation besides its marks."""

    entities: frozenset[str]
    """Relevant ones."""
    relevance: float
    group_fairness: float


def pattern(marks: Marks, num_turns: int) -> str:
    """Return marks as the paper prints them: ``o o``, ``x o``, ``x -``."""
    shown = ["?" if mark is None else "o" if mark else "x" for mark in marks]
    return " ".join([*shown, *["-"] * (num_turns - len(marks))])


def measure(
    patterns: Mapping[str, Mapping[int, Mapping[str, Marks]]],
    judged: Mapping[tuple[str, int, str], ConversationJudgement] | None = None,
    *,
    planned: Mapping[str, int] | None = None,
    bootstrap: Bootstrap | None = None,
) -> StabilityStudy:
    """Count useful turns, breakdowns and recoveries, and compares trials.

    Args:
        patterns: marks by system, trial and topic.
        judged: judgements of annotated conversations, by the same three.
        planned: turns that the conversation on each topic was to have; as many as the longest had without it.
        bootstrap: how intervals are computed.
    """
    settings = bootstrap or Bootstrap()
    longest: dict[str, int] = dict(planned or {})
    for trials in patterns.values():
        for held in trials.values():
            for topic, marks in held.items():
                longest[topic] = max(longest.get(topic, 0), len(marks))
    num_turns = max(longest.values(), default=0)
    return StabilityStudy(
        num_turns=num_turns,
        bootstrap=settings,
        trials=tuple(
            _trial(system, trial, marks, longest, settings)
            for system, trials in patterns.items()
            for trial, marks in sorted(trials.items())
        ),
        stability=tuple(
            _stability(system, trials, judged or {}, longest, settings)
            for system, trials in patterns.items()
            if len(trials) > 1
        ),
        patterns=patterns,
    )


def _trial(
    system: str, trial: int, marks: Mapping[str, Marks], longest: Mapping[str, int], bootstrap: Bootstrap
) -> TrialRow:
    name = f"{system} {trial}"
    turns = max((longest[topic] for topic in marks), default=0)
    columns = [
        [_useful(one, turn) for topic, one in marks.items() if turn < longest[topic]] for turn in range(turns)
    ]
    means = [
        float(np.mean([_useful(one, turn) for turn in range(longest[topic])])) for topic, one in marks.items()
    ]
    ended = [float(len(one) < longest[topic]) for topic, one in marks.items()]
    unsuccessful = [one for topic, one in marks.items() if longest[topic] > 1 and not _useful(one, 0)]
    recovered = [_useful(one, 1) for one in unsuccessful]
    return TrialRow(
        system=system,
        trial=trial,
        num_topics=len(marks),
        useful=tuple(bootstrap.share(f"useful {turn} {name}", column) for turn, column in enumerate(columns)),
        mean_useful=bootstrap.share(f"mean useful {name}", means),
        breakdowns=bootstrap.share(f"breakdowns {name}", ended),
        num_unsuccessful=len(unsuccessful),
        recovery=float(np.mean(recovered)) if recovered else float("nan"),
    )


def _useful(marks: Marks, turn: int) -> float:
    """Return 1 if the turn is marked useful, 0 if not or not reached, ``nan`` if not marked."""
    if turn >= len(marks):
        return 0.0
    mark = marks[turn]
    return float("nan") if mark is None else float(mark)


def _stability(
    system: str,
    trials: Mapping[int, Mapping[str, Marks]],
    judged: Mapping[tuple[str, int, str], ConversationJudgement],
    longest: Mapping[str, int],
    bootstrap: Bootstrap,
) -> StabilityRow:
    numbers = sorted(trials)
    topics = [topic for topic in trials[numbers[0]] if all(topic in trials[trial] for trial in numbers)]
    alike: list[float] = []
    agreement: list[float] = []
    overlaps: list[float] = []
    spreads: list[tuple[float, float]] = []
    for topic in topics:
        held = [trials[trial][topic] for trial in numbers]
        alike.append(float(all(one == held[0] for one in held)))
        judgements = [judged.get((system, trial, topic)) for trial in numbers]
        overlap = []
        for first, second in combinations(range(len(numbers)), 2):
            turns = longest[topic]
            agreement.extend(
                float(_at(held[first], turn) == _at(held[second], turn)) for turn in range(turns)
            )
            one, other = judgements[first], judgements[second]
            if one is not None and other is not None and one.entities | other.entities:
                overlap.append(len(one.entities & other.entities) / len(one.entities | other.entities))
        overlaps.append(float(np.mean(overlap)) if overlap else float("nan"))
        known = [one for one in judgements if one is not None]
        if len(known) == len(numbers):
            spreads.append(
                (
                    float(np.var([one.relevance for one in known], ddof=1)),
                    float(np.var([one.group_fairness for one in known], ddof=1)),
                )
            )
    return StabilityRow(
        system=system,
        num_trials=len(numbers),
        num_topics=len(topics),
        alike=bootstrap.share(f"alike {system}", alike),
        agreement=float(np.mean(agreement)) if agreement else float("nan"),
        overlap=bootstrap.mean(f"overlap {system}", overlaps, within=UNIT),
        relevance_spread=_root_mean([one for one, _ in spreads]),
        fairness_spread=_root_mean([one for _, one in spreads]),
    )


def _at(marks: Marks, turn: int) -> bool | str | None:
    return marks[turn] if turn < len(marks) else "-"


def _root_mean(variances: Sequence[float]) -> float:
    return float(np.sqrt(np.mean(variances))) if variances else float("nan")


def _tables(study: StabilityStudy) -> Iterable[Table]:
    def useful(turn: int) -> Column:
        return Column(
            f"useful_{turn + 1}",
            f"useful S{turn + 1}",
            lambda row: row.useful[turn] if turn < len(row.useful) else None,
        )

    yield Table.of(
        "trials",
        "Useful turns, breakdowns and recovery",
        study.trials,
        text("system", "system"),
        Column("trial", "trial"),
        Column("topics", "topics", ("num_topics",)),
        *map(useful, range(study.num_turns)),
        Column("mean_useful", "useful, mean"),
        Column("breakdowns", "breakdowns"),
        Column("unsuccessful", "S1 not useful", ("num_unsuccessful",)),
        Column("recovery", "recovery"),
        note="Shares of topics. A turn that a breakdown prevented is not useful; topics with fewer turns are "
        "left out of the later ones. Recovery: of the topics whose S1 was not useful, those whose S2 was.",
    )
    yield Table.of(
        "stability",
        "Trials of a system against each other",
        study.stability,
        text("system", "system"),
        Column("trials", "trials", ("num_trials",)),
        Column("topics", "topics", ("num_topics",)),
        Column("alike", "topics alike in all"),
        Column("agreement", "turns alike"),
        Column("overlap", "entities in common"),
        Column("relevance_spread", "SD of R"),
        Column("fairness_spread", "SD of GF"),
        note="Alike: useful or not, turn by turn. Entities in common: Jaccard of the relevant entities of "
        "two trials. SD: between the trials of a topic.",
    )
    yield Table(
        "outcomes",
        "Each conversation",
        (
            text("system", "system"),
            Column("trial", "trial"),
            text("topic", "topic"),
            text("turns", "system turns"),
        ),
        tuple(
            (system, trial, topic, pattern(marks, study.num_turns))
            for system, trials in study.patterns.items()
            for trial, of_topics in sorted(trials.items())
            for topic, marks in of_topics.items()
        ),
        note="o useful, x not, - not reached.",
    )
