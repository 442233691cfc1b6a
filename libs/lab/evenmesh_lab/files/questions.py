"""Questions with known answers: open ones, and multiple choice; files of one's own, and known data sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final
from zlib import crc32

import numpy as np
from pydantic import AliasChoices, Field, ValidationError

from evenmesh_lab.files.failure import FileError
from evenmesh_lab.files.lines import each_line, json_value
from evenmesh_lab.files.multiple_choice import mirage_benchmark
from evenmesh_lab.files.records import Id, Record, first_error, is_parquet, read


class TurnRecord(Record):
    """An earlier turn of a conversation."""

    question: Annotated[str, Field(min_length=1)]
    answer: str


class QuestionRecord(Record):
    """A question with its right answers, or with options and the letter of the right one; or a claim."""

    query_id: Annotated[str, Field(min_length=1, validation_alias=AliasChoices("query_id", "id"))]
    question: Annotated[str, Field(min_length=1)]
    references: Annotated[list[str] | None, Field(validation_alias=AliasChoices("references", "answers"))] = (
        None
    )
    """Right answers of an open question."""
    options: Annotated[dict[Id, Id] | None, Field(min_length=2)] = None
    """Of a multiple-choice question: texts by letter."""
    answer: str | None = None
    """The letter of the right option; of a claim "True" or "False"."""
    claim: bool = False
    """Whether the question is a claim to verify."""
    turns: Annotated[list[TurnRecord], Field(default_factory=list, max_length=100)]
    """Earlier turns of the conversation, oldest first."""
    gold_passage_ids: list[Id] | None = None
    """Passages known to hold the answer."""
    group: Annotated[str, Field(validation_alias=AliasChoices("group", "dataset"))] = ""
    """Part of the data set that is also reported alone."""
    answerable: bool = True
    """False where it is right to abstain."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question; ``line`` is where it stands in its file, from 1."""

    query_id: str
    question: str
    references: tuple[str, ...] = ()
    """Right answers; empty for multiple choice and where it is right to abstain."""
    options: tuple[tuple[str, str], ...] = ()
    """Letters and texts; empty for an open question."""
    right: str = ""
    """Letter of the right option."""
    gold: tuple[str, ...] = ()
    """Passages known to hold the answer; empty where that is not known."""
    group: str = ""
    answerable: bool = True
    claim: bool = False
    """Whether ``question`` is a claim; its options are :data:`VERDICTS`."""
    turns: tuple[tuple[str, str], ...] = ()
    """Earlier turns of the conversation, oldest first: what the user asked, and the answer."""
    line: int = 0

    @property
    def judged(self) -> bool:
        """Whether the right answer is known."""
        return bool(self.references or self.right or not self.answerable)

    @property
    def asked(self) -> str:
        """The text for a model: the question, and each option on a line; of a claim the claim alone."""
        if self.claim:
            return self.question
        return "\n".join([self.question, *(f"{letter}. {text}" for letter, text in self.options)])

    @property
    def so_far(self) -> str:
        """All that the user asked, as training data are searched for it."""
        return " ".join([*(asked for asked, _ in self.turns), self.question])

    @property
    def template(self) -> str | None:
        """The prompt of its kind (Yu et al. 2024, appendix D.2); None for the model's own.

        A model's own prompt of a turn shows earlier turns.
        """
        return "rankrag-answer-claim" if self.claim else None


VERDICTS: Final[Mapping[str, str]] = MappingProxyType({"T": "True", "F": "False"})
"""The options of a claim."""


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """The questions of a file or data set in its order, each id once, and what is wrong with it."""

    name: str
    path: Path
    questions: tuple[Question, ...]
    problems: tuple[FileError, ...] = ()
    passages: Path | None = None
    """File of the passages that come with it."""
    left_out: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """Number of questions left out, by reason."""
    drawn_of: int | None = None
    """Number of questions these were drawn from; None if these are all."""

    def sample(self, count: int, seed: int) -> QuestionSet:
        """Draw at most ``count`` questions without replacement, in the order of the file."""
        if count >= len(self.questions):
            return self
        rng = np.random.default_rng([seed, crc32(self.name.encode())])
        places = np.sort(rng.permutation(len(self.questions))[:count])
        return replace(
            self,
            questions=tuple(self.questions[place] for place in places),
            drawn_of=len(self.questions),
        )


@dataclass(frozen=True, slots=True)
class DataSet:
    """A known data set: its files below the folder of data sets, and how to read a row."""

    questions: str
    passages: str = ""
    row: Callable[[Mapping[str, Any]], Mapping[str, Any] | str] = dict
    """Converts a row to the columns of :class:`QuestionRecord`, or returns why it is left out."""


def _pubmedqa(row: Mapping[str, Any]) -> Mapping[str, Any]:
    options = {"A": "yes", "B": "no", "C": "maybe"}
    return {**row, "answers": None, "options": options, "answer": _letter(options, row["answers"][0])}


def _bioasq(row: Mapping[str, Any]) -> Mapping[str, Any] | str:
    if row["type"] == "yesno":
        options = {"A": "yes", "B": "no"}
        answer = _letter(options, row["answers"][0])
        return {**row, "answers": None, "options": options, "answer": answer, "group": "yesno"}
    if row["type"] == "factoid":
        return {**row, "group": "factoid"}
    return f"answers of type {row['type']} are not one text"


def _clapnq(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**row, "answers": row["long_answers"] or None}


def _open(row: Mapping[str, Any]) -> Mapping[str, Any] | str:
    return row if row.get("answers") else "answers are no list of texts"


DATA_SETS: Final[Mapping[str, DataSet]] = MappingProxyType(
    {
        "squad-open": DataSet("squad-open/questions.dev.jsonl.gz", "squad-open/passages.dev.jsonl.gz"),
        "squad-open/train": DataSet(
            "squad-open/questions.train.jsonl.gz", "squad-open/passages.train.jsonl.gz"
        ),
        "nq-passages": DataSet("nq-passages/questions.jsonl.gz", "nq-passages/passages.jsonl.gz"),
        "nq-passages/clapnq": DataSet(
            "nq-passages/clapnq_questions.jsonl.gz", "nq-passages/clapnq_passages.jsonl.gz", _clapnq
        ),
        "multihop-small": DataSet("multihop-small/questions.jsonl.gz", "multihop-small/passages.jsonl.gz"),
        "bioasq-golden": DataSet(
            "bioasq-golden/questions.jsonl.gz", "bioasq-golden/passages.jsonl.gz", _bioasq
        ),
        "pubmedqa-l": DataSet("pubmedqa-l/questions.jsonl.gz", "pubmedqa-l/passages.jsonl.gz", _pubmedqa),
        "mirage": DataSet("mirage/benchmark.jsonl.gz"),
        **{
            f"open-qa/{name}": DataSet(f"open-qa/{name}.jsonl.gz", row=_open)
            for name in (
                "nq_open.dev",
                "efficientqa.dev",
                "efficientqa.test",
                "webquestions.test",
                "dpr_nq_dev",
                "dpr_trivia_dev",
                "dpr_trivia_test",
                "hotpotqa_dev",
            )
        },
    }
)
"""Data sets by name, as the cards of the shared data describe them. Those of open-qa, and mirage, bring no
passages."""

_COLUMNS: Final = frozenset(QuestionRecord.model_fields) | {"id", "answers", "dataset"}


def read_question_set(name: str, folder: Path | None = None) -> QuestionSet:
    """Read the questions of a file, or of a data set by name; report every problem, never fail.

    A file is JSON lines (gzip or not) or Parquet of :class:`QuestionRecord`, or the ``benchmark.json`` that
    MIRAGE publishes. A problem is an invalid record, a repeated id, and options without the
    letter of one of them.

    Args:
        name: path of a file, or a name of :data:`DATA_SETS`.
        folder: of the data sets.
    """
    known = DATA_SETS.get(name)
    if known is not None and not Path(name).is_file():
        if folder is None:
            missing = FileError(Path(name), None, "is a data set by name: its folder is not known")
            return QuestionSet(name, Path(name), (), (missing,))
        path = folder / known.questions
        passages = folder / known.passages if known.passages else None
        return replace(_read(name, path, known.row), passages=passages)
    path = Path(name)
    if not path.exists():
        names = ", ".join(DATA_SETS)
        missing = FileError(path, None, f"is neither a file nor a data set; data sets: {names}")
        return QuestionSet(name, path, (), (missing,))
    return _read(_stem(path), path, None)


def _read(
    name: str, path: Path, row: Callable[[Mapping[str, Any]], Mapping[str, Any] | str] | None
) -> QuestionSet:
    found: dict[str, Question] = {}
    problems: list[FileError] = []
    left_out: Counter[str] = Counter()
    try:
        for number, record in _records(path, row, problems, left_out):
            wrong = _wrong(record, found)
            if wrong:
                problems.append(FileError(path, number, wrong))
            elif record.query_id not in found:
                found[record.query_id] = _question(number, record)
    except FileError as error:
        problems.append(error)
    problems.sort(key=lambda problem: problem.line or 0)
    return QuestionSet(name, path, tuple(found.values()), tuple(problems), left_out=dict(left_out))


def _wrong(record: QuestionRecord, found: Mapping[str, Question]) -> str:
    if record.query_id in found:
        return f"repeats the query {record.query_id!r} of line {found[record.query_id].line}"
    if record.claim:
        if record.options is not None or record.references or record.turns:
            return "is a claim, and has options, references or turns too"
        return "" if record.answer in VERDICTS.values() else "is a claim: its answer is True or False"
    if record.options is None:
        return "has the letter of an answer, but no options" if record.answer is not None else ""
    if record.answer is None:
        return "has options, but no answer: the letter of the right one"
    if record.answer not in record.options:
        return f"answers {record.answer!r}; its options are {', '.join(record.options)}"
    if record.references:
        return "has both options and references"
    return ""


def _question(number: int, record: QuestionRecord) -> Question:
    options = VERDICTS if record.claim else record.options or {}
    return Question(
        query_id=record.query_id,
        question=record.question,
        references=tuple(record.references or ()),
        options=tuple(options.items()),
        right=(record.answer or "")[:1] if record.claim else record.answer or "",
        claim=record.claim,
        turns=tuple((turn.question, turn.answer) for turn in record.turns),
        gold=tuple(record.gold_passage_ids or ()),
        group=record.group,
        answerable=record.answerable,
        line=number,
    )


def _records(
    path: Path,
    row: Callable[[Mapping[str, Any]], Mapping[str, Any] | str] | None,
    problems: list[FileError],
    left_out: Counter[str],
) -> Iterator[tuple[int, QuestionRecord]]:
    if is_parquet(path):
        yield from read(path, QuestionRecord)
        return
    if path.suffix == ".json" and (published := mirage_benchmark(path)) is not None:
        rows: Iterator[tuple[int, object]] = iter(published)
    else:
        rows = each_line(path, json_value, problems)
    for number, value in rows:
        if row is not None and isinstance(value, dict):
            # A known data set has more columns than needed, which are no misspellings.
            made = row(value)
            if isinstance(made, str):
                left_out[made] += 1
                continue
            value = {name: entry for name, entry in made.items() if name in _COLUMNS}
        try:
            yield number, QuestionRecord.model_validate(value)
        except ValidationError as exc:
            problems.append(FileError(path, number, first_error(exc, QuestionRecord)))


def _letter(options: Mapping[str, str], text: str) -> str:
    return next((letter for letter, option in options.items() if option == text), text)


def _stem(path: Path) -> str:
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    return plain.stem
