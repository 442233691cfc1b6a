"""The plan of a study, written before its data are asked: a TOML file, and what of it a page says.

A plan is *pre-registered* when it is committed before the study runs: what was looked for, on how many
queries and by which rule it counts as found. What was done otherwise is listed as a deviation, never
rewritten. A plan may also be written afterwards, for a study that had none: it says the same of it, and
its page that nothing was registered.
"""

from __future__ import annotations

import datetime
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from evenmesh_core.errors import InvalidInput
from evenmesh_core.sample_size import pairs_for_difference, pairs_for_half_width, power_of_pairs
from evenmesh_lab.files.failure import FileError
from evenmesh_lab.files.lines import whole_text

LONGEST: Final = 100_000
"""Most characters of a plan."""

Text = Annotated[str, Field(min_length=1, max_length=2_000)]
Name = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[\w.-]+$")]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Data(_Part):
    """A data set, and how many of its queries are asked: ``queries`` is planned, the rest says which."""

    name: Name
    queries: Annotated[int, Field(ge=1, le=10_000_000)]
    which: Text


class Hypothesis(_Part):
    """A claim, and the rule by which the data decide about it."""

    name: Name
    claim: Text
    source: Text
    """Paper and place of the claim, or "ours"."""
    decided: Text
    """When it holds, when it does not, and what is neither."""


class Power(_Part):
    """What the numbers of queries are reckoned from."""

    measure: Text
    difference: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """Smallest mean difference over queries that is worth finding."""
    deviation: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """Standard deviation of the difference over queries, as assumed; ``basis`` says why."""
    basis: Text
    level: Annotated[float, Field(gt=0, lt=1)] = 0.95
    power: Annotated[float, Field(gt=0, lt=1)] = 0.8

    @property
    def needed(self) -> int:
        """Number of queries that find the difference."""
        return pairs_for_difference(self.difference, self.deviation, level=self.level, power=self.power)

    @property
    def needed_for_width(self) -> int:
        """Number of queries whose interval is expected to be no wider than the difference to either side."""
        return pairs_for_half_width(self.difference, self.deviation, level=self.level)

    def of(self, queries: int) -> float:
        """Return the probability that so many queries find the difference; ``nan`` for fewer than two."""
        if queries < 2:
            return float("nan")
        return power_of_pairs(queries, self.difference, self.deviation, level=self.level)

    @model_validator(mode="after")
    def _can_be_reckoned(self) -> Self:
        try:
            _ = self.needed, self.needed_for_width
        except InvalidInput as error:
            raise ValueError(str(error)) from None
        return self


class Deviation(_Part):
    """Something that was done otherwise than planned, and why."""

    on: datetime.date
    what: Text


class Plan(_Part):
    """A study as it was planned."""

    title: Text
    question: Text
    registered: datetime.date
    """Day of the commit that brought the plan, before anything was asked."""
    afterwards: bool = False
    """Whether it was written after the study instead."""
    design: Annotated[list[Text], Field(min_length=1, max_length=50)]
    """Systems, settings, seeds: a sentence each."""
    analysis: Annotated[list[Text], Field(min_length=1, max_length=50)]
    """Measures, intervals, tests: a sentence each."""
    power: Power
    data: Annotated[list[Data], Field(min_length=1, max_length=100)]
    hypotheses: Annotated[list[Hypothesis], Field(min_length=1, max_length=50)]
    deviations: Annotated[list[Deviation], Field(max_length=100)] = []

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        for kind, names in (
            ("data", [one.name for one in self.data]),
            ("hypotheses", [one.name for one in self.hypotheses]),
        ):
            if twice := [name for name, times in Counter(names).items() if times > 1]:
                raise ValueError(f"{kind}: {twice[0]!r} is there twice")
        for one in self.deviations:
            if one.on < self.registered:
                raise ValueError(f"deviations: one is of {one.on}, before the plan of {self.registered}")
        return self


def read_plan(path: Path) -> Plan:
    """Return the plan in a file.

    Raises:
        FileError: there is none, it is no TOML or longer than :data:`LONGEST`, or a field is missing, unknown
            or out of its range.
    """
    text = whole_text(path)
    if len(text) > LONGEST:
        raise FileError(path, None, f"has {len(text)} characters; a plan has at most {LONGEST}")
    try:
        return Plan.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise FileError(path, None, f"is not TOML: {error}") from None
    except RecursionError:
        raise FileError(path, None, "is not TOML: it is nested too deep") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the plan"
        raise FileError(path, None, f"{place}: {first['msg']}") from None


def described(plan: Plan, asked: Mapping[str, int]) -> str:
    """Return what a page says of a plan, in Markdown: question, design, power, claims, deviations.

    Args:
        plan: the plan.
        asked: how many queries of each data set were asked in the end; those missing were not.
    """
    power = plan.power
    when = f"Registered on {plan.registered}, before anything was asked."
    if plan.afterwards:
        when = f"Written on {plan.registered}, after the study: nothing of it was registered."
    lines = [
        f"**Question.** {_cell(plan.question)}",
        "",
        when,
        "",
        *(f"- {_cell(one)}" for one in plan.design),
        *(f"- {_cell(one)}" for one in plan.analysis),
        "",
        f"**Power.** {_cell(power.measure)}: to find a difference of {power.difference:g} with probability "
        f"{power.power:g} takes {power.needed:,} queries if it varies by {power.deviation:g} over queries "
        f"({_cell(power.basis)}); for an interval of ± {power.difference:g} it takes "
        f"{power.needed_for_width:,}.",
        "",
        "| data | planned | asked | power of what was asked | which queries |",
        "|---|---|---|---|---|",
    ]
    for data in plan.data:
        number = asked.get(data.name, 0)
        found = f"{power.of(number):.2f}" if number >= 2 else "none"
        lines.append(f"| {data.name} | {data.queries:,} | {number:,} | {found} | {_cell(data.which)} |")
    lines += ["", "| claim | | source | decided by |", "|---|---|---|---|"]
    lines += [
        f"| {one.name} | {_cell(one.claim)} | {_cell(one.source)} | {_cell(one.decided)} |"
        for one in plan.hypotheses
    ]
    if not plan.afterwards:
        lines += ["", "**Deviations from the plan.**" + ("" if plan.deviations else " None.")]
    # Markdown begins a list after an empty line.
    lines += ["", *(f"- {one.on}: {_cell(one.what)}" for one in plan.deviations)]
    return "\n".join(lines).rstrip()


def _cell(text: str) -> str:
    """Return a text on one line that ends no cell of a table and is no markup of a page."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
