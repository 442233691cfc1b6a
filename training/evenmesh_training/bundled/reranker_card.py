"""The model card of the bundled cross-encoder: what it is, what it was trained on, what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from string import Template
from typing import Any, Final

from evenmesh_lab.files.agent_runs import AgentRunRecord
from evenmesh_models import MINILM_PACKAGE
from evenmesh_training.ium import session
from evenmesh_training.ium.start import FROZEN_LAYERS

_FROM_READER: Final = (
    "It started from the upper layers of the bundled reader, which was trained on SQuAD's training "
    "questions. The questions of wiki-multitask's task qa-span, its dev split too, are among these, so the "
    "utilities of that task say nothing about new questions."
)

_BLENDED: Final = (
    "The bundled weights lie {share:.0%} of the way from the supervised model to the one that learned from "
    "agents (`training/evenmesh_training/bundled/reranker_blend.py`), because learning from agents makes a "
    "model forget some of its supervised training."
)

_LISTS: Final = """
Last, on lists (`python -m evenmesh_training.bundled.reranker_listwise`): {steps:,} steps of
{lists_of_a_step} lists of {candidates} candidates of a hybrid first stage, learning rate
{learning_rate:g}, {max_length} tokens, seed {seed}. It learns what to add to the first stage's scores,
to give probabilities, and where nobody judged to order as the dense encoder does. Questions of training
splits only; those of open-qa (WebQuestions) and mirage have no passages of their own:

| data set | lists |
|---|---|
{rows}
"""


def card(
    size: int,
    max_length: int,
    warm: Mapping[str, Any],
    runs: Sequence[AgentRunRecord],
    measured: Sequence[Mapping[str, Any]],
    *,
    share: float = 1.0,
    lists: Mapping[str, Any] | None = None,
) -> str:
    """Return the text of the card.

    Args:
        size: of the weights. Bytes.
        max_length: longest pair that the model serves. Tokens.
        warm: record of the supervised training.
        runs: records of the offline training.
        measured: outputs of :mod:`evenmesh_training.bundled.reranker_evaluation`.
        share: weight of the model after learning from agents, (0, 1].
        lists: record of the training on lists; None: there was none.
    """
    template = (
        resources.files("evenmesh_training.bundled").joinpath("reranker_card.txt").read_text(encoding="utf-8")
    )
    agreement = [
        f"Kendall's tau between its rankings in bfloat16 and in float32, {one['depth']} candidates: "
        f"{one['kendall_tau']:.4f}."
        for one in measured
        if "kendall_tau" in one
    ]
    return Template(template).substitute(
        package=MINILM_PACKAGE,
        max_length=max_length,
        megabytes=f"{size / 1e6:.1f}",
        first_layer=FROZEN_LAYERS,
        reranking="\n".join(
            f"| {one['questions']:,} | {one['depth']} | {order} | {_interval(one[f'{order} ndcg@10'])} "
            f"| {_interval(one[f'{order} recall@5'])} |"
            for one in measured
            for order in ("bm25", "reranked")
        ),
        agreement="\n".join(agreement) or "How far bfloat16 ranks alike was not measured.",
        utilities="\n".join(_utilities(runs)),
        steps=f"{warm['steps']:,}",
        batch_size=warm["batch_size"],
        negatives=warm["negatives"],
        articles_left_out=warm["articles_left_out"],
        learning_rate=warm["learning_rate"],
        warm_length=warm["max_length"],
        seed=warm["seed"],
        begun=_FROM_READER if warm.get("reader_sha256") else "",
        blended="" if share == 1 else _BLENDED.format(share=share),
        lists="" if lists is None else _lists(lists),
    )


def _lists(of: Mapping[str, Any]) -> str:
    rows = "\n".join(f"| {name} | {count:,} |" for name, count in of["lists"].items())
    return _LISTS.format(rows=rows, **{name: value for name, value in of.items() if name != "lists"})


def _interval(values: Sequence[float]) -> str:
    value, low, high = values
    return f"{value:.3f} ({low:.3f} to {high:.3f})"


def _utilities(runs: Sequence[AgentRunRecord]) -> list[str]:
    systems: dict[tuple[str, int | None, bool], list[AgentRunRecord]] = {}
    for one in runs:
        systems.setdefault((one.system, one.iteration, one.personalised), []).append(one)
    means = {key: session.averages(records) for key, records in systems.items()}
    agents = list(dict.fromkeys(name for found in means.values() for name in found if name != "macro"))
    lines = [f"| system | round | {' | '.join(agents)} | mean |", f"|---|---|{'---|' * (len(agents) + 1)}"]
    for (name, at, personalised), found in means.items():
        shown = [f"{found[one]:.3f}" if one in found else "–" for one in (*agents, "macro")]
        label = name if personalised else f"{name} (not personalised)"
        lines.append(f"| {label} | {'–' if at is None else at} | {' | '.join(shown)} |")
    return lines
