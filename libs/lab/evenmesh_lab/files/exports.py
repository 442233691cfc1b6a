"""Write rankings, judgements and answers as other tools read them: trec_eval, ir-measures, ranx, ragas."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from evenmesh_lab.files.answered import AnsweredRecord
from evenmesh_lab.files.audits import QueryAudit
from evenmesh_lab.files.failure import FileError
from evenmesh_lab.files.labels import Labels
from evenmesh_lab.files.questions import Question
from evenmesh_lab.files.records import replace_file


@dataclass(frozen=True, slots=True)
class ExportedRun:
    """A run that was written.

    Attributes:
        run: its file.
        qrels: the judgements of its queries; None without labels, or where none of its queries is judged.
        queries: its queries; each sampled ranking is one of its own, ``QUERY/sample=NUMBER``.
    """

    run: Path
    qrels: Path | None
    queries: int


def write_runs(audits: Iterable[QueryAudit], folder: Path, labels: Labels | None = None) -> list[ExportedRun]:
    """Write the rankings of each system at each α as a run of TREC, and the judgements of its queries.

    Most tools expect one ranking for each query. So where a query has several, each is the ranking of a query
    ``QUERY/sample=NUMBER`` with the same judgements, and a mean over these queries is an expectation. Scores
    fall by one from rank to rank.

    Args:
        audits: the rankings, as :func:`evenmesh_lab.files.read_audits` yields them.
        folder: folder of the files ``SYSTEM[-alpha=NUMBER].trec``; it is made. Its folder ``qrels`` has the
            judgements of each under the same name, so that ``*.trec`` matches runs alone.
        labels: judgements; whole numbers.

    Raises:
        FileError: an id has white space or is empty, or a grade is no whole number, which the formats cannot
            hold; or two systems would have the same file.
    """
    runs: dict[tuple[str, float | None], dict[str, list[Sequence[str]]]] = {}
    for audit in audits:
        for one in audit.samplings:
            runs.setdefault((one.system, one.alpha), {})[audit.query_id] = list(one.rankings)
    judgements = folder / "qrels"
    (folder if labels is None else judgements).mkdir(parents=True, exist_ok=True)
    written: list[ExportedRun] = []
    for (system, alpha), rankings in runs.items():
        tag = re.sub(r"\s+", "_", system or "run") + ("" if alpha is None else f"/alpha={alpha:g}")
        path = folder / f"{_file_name(tag)}.trec"
        if any(path == one.run for one in written):
            raise FileError(path, None, f"is the file of two systems, one of them {system!r}")
        named = dict(_queries(rankings))
        replace_file(path, partial(_write, lines=_run_lines(path, named, tag)))
        qrels = None if labels is None else judgements / path.name
        if qrels is not None and labels is not None:
            lines = list(_qrels_lines(labels, rankings))
            if lines:
                replace_file(qrels, partial(_write, lines=lines))
            else:
                qrels.unlink(missing_ok=True)
                qrels = None
        written.append(ExportedRun(path, qrels, len(named)))
    return written


def write_ragas(
    answers: Iterable[AnsweredRecord],
    questions: Mapping[tuple[str, str], Question],
    folder: Path,
    texts: Mapping[str, str] | None = None,
) -> dict[Path, int]:
    """Write the answers of each system as samples of ragas (Es et al. 2024), JSON lines.

    ``ragas.EvaluationDataset.from_jsonl`` reads them. A sample has ``user_input``, ``retrieved_context_ids``,
    ``response``, and where they are known ``reference`` (the first right answer), ``reference_context_ids``
    and ``retrieved_contexts``. Questions without an answer are left out.

    Args:
        answers: records of ``evenmesh eval rag``.
        questions: by name of the data set and id.
        folder: folder of the files ``DATASET-RETRIEVER-RERANKER-nN-kK-MODEL.jsonl``; it is made.
        texts: text by passage id; a sample of which one is missing gets no ``retrieved_contexts``.

    Returns:
        The samples of each file.

    Raises:
        FileError: the question of an answer is not there.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for one in answers:
        if one.answer is None:
            continue
        question = questions.get((one.dataset, one.query_id))
        if question is None:
            raise FileError(Path(one.dataset), None, f"has no question {one.query_id!r}, which has an answer")
        name = f"{one.dataset}-{one.retriever}-{one.reranker}-n{one.n}-k{one.k}-{one.model}"
        found.setdefault(f"{_file_name(name)}.jsonl", []).append(_sample(one, question, texts or {}))
    folder.mkdir(parents=True, exist_ok=True)
    for name, samples in found.items():
        lines = [json.dumps(sample, ensure_ascii=False) for sample in samples]
        replace_file(folder / name, partial(_write, lines=lines))
    return {folder / name: len(samples) for name, samples in found.items()}


def _sample(one: AnsweredRecord, question: Question, texts: Mapping[str, str]) -> dict[str, Any]:
    right = dict(question.options).get(question.right, "")
    reference = next(iter(question.references), right)
    sample: dict[str, Any] = {
        "user_input": question.asked,
        "retrieved_context_ids": one.context,
        "response": one.answer,
    }
    if reference:
        sample["reference"] = reference
    if question.gold:
        sample["reference_context_ids"] = list(question.gold)
    if all(name in texts for name in one.context):
        sample["retrieved_contexts"] = [texts[name] for name in one.context]
    return sample


def _queries(rankings: Mapping[str, Sequence[Sequence[str]]]) -> Iterator[tuple[str, Sequence[str]]]:
    for query, several in rankings.items():
        yield from zip(_names(query, len(several)), several, strict=True)


def _names(query: str, count: int) -> list[str]:
    return [query] if count == 1 else [f"{query}/sample={place}" for place in range(count)]


def _run_lines(path: Path, rankings: Mapping[str, Sequence[str]], tag: str) -> Iterator[str]:
    for query, ranking in rankings.items():
        for rank, passage in enumerate(ranking, 1):
            score = len(ranking) - rank
            yield f"{_word(path, query)} Q0 {_word(path, passage)} {rank} {score} {tag}"


def _qrels_lines(labels: Labels, rankings: Mapping[str, Sequence[Sequence[str]]]) -> Iterator[str]:
    for query, several in rankings.items():
        for name in _names(query, len(several)):
            for passage, grade in labels.grades.get(query, {}).items():
                if grade != int(grade):
                    raise FileError(
                        labels.path,
                        None,
                        f"grades {passage!r} for query {query!r} {grade:g}; TREC has whole numbers",
                    )
                yield f"{_word(labels.path, name)} 0 {_word(labels.path, passage)} {int(grade)}"


def _word(path: Path, name: str) -> str:
    if not name or any(one.isspace() for one in name):
        raise FileError(path, None, f"cannot hold the id {name!r}, which is empty or has white space")
    return name


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.=@&+-]+", "-", name).strip("-.") or "run"


def _write(path: Path, lines: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
