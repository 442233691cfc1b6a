"""The conversation study: how relevant and how group-fair annotated conversations are (GFRC).

Source: Sakai 2023, §3, §6.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from evenmesh_core.errors import InvalidInput
from evenmesh_core.group_fairness import Attribute, Transcript, conversation
from evenmesh_core.intervals import BootstrapInterval
from evenmesh_lab.studies.exposure import comparison_table
from evenmesh_lab.studies.tables import Column, Table, means, measures, text
from evenmesh_lab.studies.uncertainty import (
    UNIT,
    UPWARD,
    Bootstrap,
    Comparison,
    adjusted,
    bootstrap_mean,
    bootstrap_share,
    by_query,
    compare,
)


@dataclass(frozen=True, slots=True)
class ConversationRow:
    """One conversation."""

    system: str
    topic: str
    trial: int
    """Index of the system's conversation on the topic, from 1."""
    num_turns: int
    """System turns."""
    num_nuggets: int
    num_words: int
    relevance: float
    """R."""
    group_fairness: float
    """GF."""
    combined: float
    """GFRC."""
    by_attribute: Mapping[str, float]
    """GF of each attribute."""

    @property
    def relevant(self) -> float:
        """1 where R is above 0, and 0 elsewhere, where GF is 0 by definition."""
        return float(self.relevance > 0)

    @property
    def fairness_where_relevant(self) -> float:
        """GF where R is above 0; ``nan`` elsewhere."""
        return self.group_fairness if self.relevance > 0 else math.nan


@dataclass(frozen=True, slots=True)
class ConversationSummary:
    """One system: means over conversations, which are resampled by topic."""

    system: str
    num_conversations: int
    means: Mapping[str, BootstrapInterval]
    """Measures of :data:`LABELS`, and ``GF`` and the name of each attribute. ``fairness_where_relevant`` is
    of the topics with a relevant conversation."""


@dataclass(frozen=True, slots=True)
class ConversationStudy:
    """Results of the study."""

    attributes: tuple[str, ...]
    bootstrap: Bootstrap
    rows: tuple[ConversationRow, ...]
    summaries: tuple[ConversationSummary, ...]
    comparisons: tuple[Comparison, ...]
    """The first system against each other, on the topics both have; the mean of a topic's trials counts."""

    def tables(self) -> tuple[Table, ...]:
        """Return summary, comparisons, and each conversation, in this order."""
        return tuple(table for table in _tables(self) if table.rows)


LABELS: Mapping[str, str] = {
    "relevance": "R",
    "group_fairness": "GF",
    "combined": "GFRC",
    "relevant": "R > 0",
    "fairness_where_relevant": "GF where R > 0",
}
_OF_EACH: Mapping[str, str] = {name: LABELS[name] for name in ("relevance", "group_fairness", "combined")}
"""Measures that stand beside each conversation; the others follow from them."""


def measure(
    transcripts: Mapping[str, Sequence[Transcript]],
    attributes: Mapping[str, Attribute],
    *,
    patience: float = 1250,
    method: Literal["independent", "cumulative"] = "independent",
    irrelevant_turns: Literal["ignore", "uniform"] = "ignore",
    turn_weights: Literal["equal", "position"] = "equal",
    attribute_weights: Mapping[str, float] | None = None,
    alpha: float = 0.5,
    bootstrap: Bootstrap | None = None,
) -> ConversationStudy:
    """Score conversations by relevance and group fairness.

    Args:
        transcripts: conversations by system.
        attributes: the target of each attribute.
        patience: words a user reads before giving up.
        method: whether a turn's distribution comes from its own nuggets or from all so far.
        irrelevant_turns: whether turns without relevant nuggets are left out or count as uniform.
        turn_weights: whether all turns count alike, or late ones less.
        attribute_weights: weight of each attribute, sum 1; None weighs all alike.
        alpha: weight of relevance in GFRC.
        bootstrap: how intervals are computed.

    Raises:
        InvalidInput: an argument out of range, or a conversation without what an attribute needs; the
            argument names system and topic.
    """
    settings = bootstrap or Bootstrap()
    rows: list[ConversationRow] = []
    for system, conversations in transcripts.items():
        trials: dict[str, int] = {}
        for transcript in conversations:
            trial = trials[transcript.topic] = trials.get(transcript.topic, 0) + 1
            try:
                turns = transcript.nuggets()
                found = conversation(
                    turns,
                    attributes,
                    patience=patience,
                    method=method,
                    irrelevant_turns=irrelevant_turns,
                    turn_weights=turn_weights,
                    attribute_weights=attribute_weights,
                    alpha=alpha,
                )
            except InvalidInput as exc:
                where = f"{system}, topic {transcript.topic}: {exc.argument}"
                raise InvalidInput(where, exc.value, exc.allowed) from exc
            rows.append(
                ConversationRow(
                    system=system,
                    topic=transcript.topic,
                    trial=trial,
                    num_turns=len(turns),
                    num_nuggets=sum(map(len, turns)),
                    num_words=sum(turn.words for turn in transcript.turns),
                    relevance=found.relevance,
                    group_fairness=found.group_fairness,
                    combined=found.combined,
                    by_attribute={name: part.group_fairness for name, part in found.by_attribute.items()},
                )
            )
    names = tuple(attributes)
    return ConversationStudy(
        attributes=names,
        bootstrap=settings,
        rows=tuple(rows),
        summaries=tuple(_summary(system, rows, names, settings) for system in transcripts),
        comparisons=adjusted(list(_comparisons(list(transcripts), rows, settings))),
    )


def _summary(
    system: str, rows: list[ConversationRow], attributes: tuple[str, ...], bootstrap: Bootstrap
) -> ConversationSummary:
    mine = [row for row in rows if row.system == system]
    topics = [row.topic for row in mine]
    estimates = {
        name: bootstrap_mean(
            bootstrap,
            f"{name} {system}",
            topics,
            [getattr(row, name) for row in mine],
            within=UNIT if name == "group_fairness" else UPWARD,
        )
        for name in _OF_EACH
    }
    relevant = [row.relevant for row in mine]
    estimates["relevant"] = bootstrap_share(bootstrap, f"relevant {system}", topics, relevant)
    estimates["fairness_where_relevant"] = bootstrap.mean(
        f"fairness_where_relevant {system}",
        list(_of_topics(mine, "fairness_where_relevant").values()),
        within=UNIT,
    )
    for name in attributes:
        values = [row.by_attribute[name] for row in mine]
        estimates[f"GF {name}"] = bootstrap_mean(
            bootstrap, f"GF {name} {system}", topics, values, within=UNIT
        )
    return ConversationSummary(system, len(mine), estimates)


def _of_topics(rows: Sequence[ConversationRow], name: str) -> dict[str, float]:
    """Return the mean of a measure over each topic's conversations that have it; ``nan`` where none has."""
    found = dict.fromkeys((row.topic for row in rows), math.nan)
    defined = [row for row in rows if not math.isnan(getattr(row, name))]
    return found | by_query([row.topic for row in defined], [getattr(row, name) for row in defined])


def _comparisons(
    systems: list[str], rows: list[ConversationRow], bootstrap: Bootstrap
) -> Iterable[Comparison]:
    for name in LABELS:
        columns = {}
        for system in systems:
            columns[system] = _of_topics([row for row in rows if row.system == system], name)
        for other in systems[1:]:
            found = compare(bootstrap, name, (systems[0], columns[systems[0]]), (other, columns[other]))
            if found is not None:
                yield found


def _tables(study: ConversationStudy) -> Iterable[Table]:
    attributes = {name: Column(f"gf_{name.lower()}", f"GF {name}") for name in study.attributes}
    yield Table.of(
        "summary",
        "Relevance and group fairness of conversations",
        study.summaries,
        text("system", "system"),
        Column("conversations", "conversations", ("num_conversations",)),
        *means(LABELS),
        *(replace(one, value=("means", f"GF {name}")) for name, one in attributes.items()),
        note="Means over topics.",
    )
    yield comparison_table(study.comparisons, LABELS)
    yield Table.of(
        "conversations",
        "Each conversation",
        study.rows,
        text("system", "system"),
        text("topic", "topic"),
        Column("trial", "trial"),
        Column("turns", "turns", ("num_turns",)),
        Column("nuggets", "nuggets", ("num_nuggets",)),
        Column("words", "words", ("num_words",)),
        *measures(_OF_EACH),
        *(replace(one, value=("by_attribute", name)) for name, one in attributes.items()),
    )
