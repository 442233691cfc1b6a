"""Which of the questions and passages that a run is measured on its models were trained on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from evenmesh_lab.files.agent_runs import AgentRunRecord
from evenmesh_lab.files.trained_texts import TrainedTexts, find_trained_texts
from evenmesh_lab.studies.known_models import trained
from evenmesh_lab.studies.overlap import Overlap, measure
from evenmesh_training.ium.offline import MODEL
from evenmesh_training.ium.plan import AgentTasks
from evenmesh_training.ium.result_cache import ResultCache
from evenmesh_training.ium.session import RESULTS

_START: Final = "start"
_ROUND: Final = "round-"


def overlap(folder: Path, plan: AgentTasks, records: Sequence[AgentRunRecord]) -> Overlap[str]:
    """Return the overlap of the evaluation with the training of rerankers and of the agents' models.

    Args:
        folder: of the run.
        plan: agents and tasks.
        records: answers of the evaluation; their questions and the passages they were given count.

    Raises:
        FileError: what a model was trained on cannot be read.
    """
    asked = {one.query_id for one in records}
    questions = {one.id: (one.question,) for one in plan.tasks if one.id in asked}
    shown = dict.fromkeys(name for one in records for name in one.ranking[: one.shown])
    with ResultCache(folder / RESULTS) as cache:
        texts = [one.text for one in cache.passages(shown)]
        models = trained(cache.facts())
    return measure(questions, {**_rerankers(folder), **models}, texts)


def _rerankers(folder: Path) -> dict[str, TrainedTexts | None]:
    """Return what the model at the start, and the last one of each learner, were trained on."""
    last: dict[Path, Path] = {}
    for model in folder.rglob(f"{_ROUND}*/{MODEL}"):
        learner = model.parent.parent
        last[learner] = max(last.get(learner, model), model, key=_number)
    models = {f"reranker {one.relative_to(folder)}": model for one, model in sorted(last.items())}
    if (begun := folder / _START / MODEL).is_dir():
        models = {"reranker at the start": begun, **models}
    return {name: find_trained_texts(model) for name, model in models.items()}


def _number(model: Path) -> int:
    return int(model.parent.name.removeprefix(_ROUND))
