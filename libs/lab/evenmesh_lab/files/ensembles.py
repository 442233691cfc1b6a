"""Ensembles: the answers that each question got with each retriever."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evenmesh_lab.files.failure import FileError
from evenmesh_lab.files.records import EnsembleRecord, read


@dataclass(frozen=True, slots=True)
class EnsembleAnswer:
    """One retriever's answer."""

    answer: str
    correct: float | None
    """Correctness in [0, 1], where the file has it."""
    context: str | None
    """The passages it was written from."""


@dataclass(frozen=True, slots=True)
class EnsembleQuestion:
    """One question, asked once with each of M retrievers."""

    query_id: str
    sample: int | None
    """Index of the repetition."""
    question: str
    references: tuple[str, ...]
    answers: tuple[EnsembleAnswer, ...]
    """M answers, in the order of the retrievers."""
    path: Path
    """File of the first record."""
    line: int
    """Line (row) of the first record."""


@dataclass(frozen=True, slots=True)
class Ensemble:
    """The questions of one or more files."""

    retrievers: tuple[str, ...]
    """M names, in the order of the files, or as asked for."""
    questions: tuple[EnsembleQuestion, ...]

    def with_questions(self, wanted: Callable[[EnsembleQuestion], bool]) -> Ensemble:
        """Return the ensemble with some of its questions."""
        return replace(self, questions=tuple(one for one in self.questions if wanted(one)))

    def with_retrievers(self, names: Sequence[str]) -> Ensemble:
        """Return the ensemble with some of its retrievers, in the given order.

        Raises:
            ValueError: one that is not there.
        """
        places = [self.retrievers.index(name) for name in names]
        return Ensemble(
            tuple(names),
            tuple(
                replace(one, answers=tuple(one.answers[place] for place in places)) for one in self.questions
            ),
        )


def read_ensemble(paths: Sequence[Path], *, retrievers: Sequence[str] | None = None) -> Ensemble:
    """Read the answers of an ensemble from JSON lines or Parquet.

    Args:
        paths: one file or more.
        retrievers: the retrievers to read, in the order in which ties break; None takes all in the order of
            the files.

    Raises:
        FileError: an invalid record; an answer given twice; a question without an answer of some
            retriever; a retriever asked for that is nowhere.
    """
    asked: dict[tuple[str, int | None], dict[str, tuple[Path, int, EnsembleRecord]]] = {}
    found: dict[str, None] = {}
    for path in paths:
        for line, record in read(path, EnsembleRecord):
            found.setdefault(record.retriever)
            answers = asked.setdefault((record.query_id, record.sample), {})
            if record.retriever in answers:
                other, before, _ = answers[record.retriever]
                raise FileError(
                    path,
                    line,
                    f"answers query {record.query_id!r} with {record.retriever!r} again, as {other}:{before}",
                )
            answers[record.retriever] = (path, line, record)
    names = tuple(found) if retrievers is None else tuple(retrievers)
    for name in names:
        if names.count(name) > 1:
            raise FileError(paths[0], None, f"is to be read with the retriever {name!r} twice: name it once")
        if name not in found:
            raise FileError(paths[0], None, f"has no retriever {name!r}; it has: {', '.join(found)}")
    return Ensemble(names, tuple(_question(key, answers, names) for key, answers in asked.items()))


def _question(
    key: tuple[str, int | None],
    answers: dict[str, tuple[Path, int, EnsembleRecord]],
    names: tuple[str, ...],
) -> EnsembleQuestion:
    path, line, first = next(iter(answers.values()))
    for name in names:
        if name not in answers:
            raise FileError(path, line, f"begins query {key[0]!r}, which has no answer with {name!r}")
    records = [answers[name][2] for name in names]
    references = next((tuple(record.references) for record in records if record.references), ())
    return EnsembleQuestion(
        query_id=key[0],
        sample=key[1],
        question=next((record.question for record in records if record.question), first.question),
        references=references,
        answers=tuple(EnsembleAnswer(one.answer, one.correct, one.context) for one in records),
        path=path,
        line=line,
    )
