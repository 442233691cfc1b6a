"""The options of an ask, and the request that they make."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from google.protobuf.message import Message

from evenmesh.codec.mapping import encode, enum_number
from evenmesh.codec.values import flag, several, text, whole
from evenmesh.common.v1 import common_pb2
from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb2
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as orchestrator_pb2
from evenmesh.types.filters import Filter, filter_message
from evenmesh.types.policy import Balance, GroupShare
from evenmesh.wire.checks import PassageLike
from evenmesh.wire.errors import InvalidField

Metric = Literal["exact_match", "token_f1", "rouge1", "rouge2", "rouge_l", "accuracy", "rating"]
"""How answers are scored against references."""

Augmentation = Literal[
    "in_prompt", "fusion_in_decoder", "retrieval_free", "parametric_knowledge", "compression"
]
"""How passages are handed to the model."""

SamplingStage = Literal["retriever", "reranker"]
"""Over whose scores rankings are sampled."""


@dataclass(frozen=True, slots=True)
class Agent:
    """On whose behalf a question is asked: task and model id, each at most 128 bytes; empty if unknown."""

    task_id: str = ""
    model_id: str = ""


@dataclass(frozen=True, slots=True)
class Decoding:
    """How the generator chooses tokens; None leaves the choice to it.

    Attributes:
        num_beams: beams, 1 (greedy) to 16.
        max_new_tokens: longest answer in tokens, 1 to 4096.
        temperature: sampling temperature, 0 (no sampling) to 10.
        top_p: nucleus mass when sampling, above 0 up to 1.
        seed: seed when sampling, 0 to 2^63 - 1; without it that of the rankings, or one is drawn.
        stop: texts that end the answer before them, at most 8 of 1 to 128 bytes.
    """

    num_beams: int | None = None
    max_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: Sequence[str] = ()


class AskOptions(TypedDict, total=False):
    """How to answer a question; the mesh chooses options that are left out or None.

    Attributes:
        collection: name of the collection to ask; the server's default without it.
        passages: candidates to use instead of a collection, 1 to 1,000.
        expression: sources of the mesh in the notation of docs/guides/expressions.md, such as
            ``SE@RR@5&Wiki@5``, instead of ``collection``, ``passages``, ``retriever``, ``k`` and
            ``rerank_depth``.
        ensemble: name of an ensemble that the mesh is configured with, or 2 to 20 expressions whose answers
            vote; instead of one expression, and of ``alpha``, targets and ``samples``.
        filter: conditions on the attributes of passages, see :data:`evenmesh.Filter`.
        alpha: fairness dial, 0 (uniform) to 100 (follows the scores); sampled rankings if given.
        disparity: instead of ``alpha``, the expected EE-D of its bound to reach, 0 to 1; the mesh finds the
            dial for each question. Sampled rankings if given.
        relevance_loss: instead of ``alpha``, the share of the best context's relevance that may be given up,
            0 to 1, for the most even exposure there is at that price. Sampled rankings if given.
        shares: instead of ``alpha``, bounds on the shares of groups in the expected exposure, see
            :class:`evenmesh.GroupShare`, at most 16. Sampled rankings if given.
        balance: fairness over time, see :class:`evenmesh.Balance`; with ``alpha``, not with a target. Sampled
            rankings if given.
        samples: rankings to draw, 1 to 1,000; sampled rankings if given.
        seed: seed of the sampled rankings, and of the words where ``decoding`` samples them and has no own, 0
            to 2^63 - 1; without it one is drawn for each call, see :attr:`evenmesh.Done.seed`.
        sampling_stage: over whose scores rankings are sampled; without it the reranker's, or the retriever's
            where the reranker is ``none``.
        k: passages the generator is given, 1 to 100; 5 without it.
        depth: size of the candidate pool, 1 to 1,000; 100 without it.
        rerank_depth: passages handed to the reranker, k to depth.
        retriever: by name.
        reranker: ``cross-encoder``, ``rankrag`` or ``none``.
        fusion: weight of the retriever's standardized scores beside the reranker's log-odds, 0 (the reranker
            alone) to 10; that of the reranker's model without it.
        model: the generator's model by name.
        augmentation: how passages are handed to the model.
        decoding: how tokens are chosen.
        num_answers: sampled rankings to answer, from the first, 0 to samples; all without it.
        agent: on whose behalf.
        references: right answers, for the report's utility.
        useful: ids of the useful passages, for the report's EE-R; empty means that nothing is useful.
        metric: how answers are scored against references; token F1 without it.
        run_id: run the observation is filed under; one per UTC day without it.
        query_id: query id within the run; derived from the question without it.
        observe: whether the evaluator gets an observation of this ask; True without it.
        run_report: wait for the run's report, as :attr:`evenmesh.Report.run`; False without it.
        search: query to retrieve and rank passages for, where that is not the question.
        template: prompt by name, such as ``lamp-4``; the model's own without it.
        turns: earlier turns of a conversation that you hold, oldest first, each a question and its answer; at
            most 100. Words of the newest 10 help retrieval, and the model reads these 10; all with a
            template, which must use turns.
    """

    collection: str | None
    passages: Iterable[PassageLike] | None
    expression: str | None
    ensemble: str | Sequence[str] | None
    filter: Filter | None
    alpha: float | None
    disparity: float | None
    relevance_loss: float | None
    shares: Sequence[GroupShare] | None
    balance: Balance | None
    samples: int | None
    seed: int | None
    sampling_stage: SamplingStage | None
    k: int | None
    depth: int | None
    rerank_depth: int | None
    retriever: str | None
    reranker: str | None
    fusion: float | None
    model: str | None
    augmentation: Augmentation | None
    decoding: Decoding | None
    num_answers: int | None
    agent: Agent | None
    references: Sequence[str] | None
    useful: Sequence[str] | None
    metric: Metric | None
    run_id: str | None
    query_id: str | None
    observe: bool
    run_report: bool
    search: str | None
    template: str | None
    turns: Sequence[tuple[str, str]] | None


def ask_request(question: str, options: AskOptions) -> orchestrator_pb2.AskRequest:
    """Return the request that asks ``question`` with ``options``.

    Raise only for what a message cannot hold; the mesh checks ranges.

    Raises:
        InvalidField: a value does not fit its field, or both a collection and passages are given.
        TypeError: an option does not exist.
    """
    if unknown := options.keys() - AskOptions.__annotations__.keys():
        raise TypeError(f"ask() has no option {', '.join(sorted(unknown))}")
    passages, ensemble, wanted = options.get("passages"), options.get("ensemble"), options.get("filter")
    if passages is not None and options.get("collection") is not None:
        raise InvalidField("collection", "give a collection or passages, not both")
    members = {"name": ensemble} if isinstance(ensemble, str) else {"expressions": ensemble}
    values = {
        **same_named(options, orchestrator_pb2.AskRequest),
        "question": question,
        "candidates": candidates(passages),
        "ensemble": None if ensemble is None else members,
        "filter": None if wanted is None else filter_message(wanted),
        "sampling": sampling(options),
        "skip_observation": not flag("observe", options.get("observe"), default=True),
        "want_report": flag("run_report", options.get("run_report")),
        "turns": _turns(options.get("turns") or ()),
    }
    request = encode(orchestrator_pb2.AskRequest, values)
    words, seed = request.decoding, options.get("seed")
    drawn = words.temperature > 0 and not words.HasField("seed")
    if seed is not None and drawn and not request.HasField("sampling"):  # with one, the mesh does so itself
        words.seed = whole("seed", seed, bits=64)
    _set_labels(request, options)
    return request


def passage_message(passage: PassageLike) -> common_pb2.Passage:
    """Return the message of a passage.

    Raises:
        InvalidField: it is no passage, or a part is not valid Unicode text.
    """
    if not hasattr(passage, "id"):
        raise InvalidField("passages", f"must be of evenmesh.Passage, not {type(passage).__name__}")
    field = f"passage {passage.id!r}"
    return common_pb2.Passage(
        id=text(f"{field}.id", passage.id),
        title=text(f"{field}.title", passage.title),
        text=text(f"{field}.text", passage.text),
        attributes={
            text(f"{field}.attributes", name): text(f"{field}.attributes", value)
            for name, value in passage.attributes.items()
        },
    )


def same_named(options: Mapping[str, Any], kind: type[Message]) -> dict[str, Any]:
    """Return the options that are fields of the request."""
    return {name: value for name, value in options.items() if name in kind.DESCRIPTOR.fields_by_name}


def candidates(passages: Iterable[PassageLike] | None) -> dict[str, object] | None:
    """Return the values of a request's candidates; None for None."""
    return None if passages is None else {"passages": [passage_message(one) for one in passages]}


def sampling(options: Mapping[str, Any]) -> dict[str, object] | None:
    """Return the values of a request's sampling; None for a deterministic ranking."""
    values = {
        name: options.get(name) for name in ("alpha", "disparity", "relevance_loss", "shares", "balance")
    }
    values["num_rankings"] = options.get("samples")
    if all(value is None for value in values.values()):
        return None
    return {**values, "seed": options.get("seed")}


def _turns(turns: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    values = []
    for place, turn in enumerate(several("turns", turns)):
        if not isinstance(turn, Sequence) or isinstance(turn, str) or len(turn) != 2:
            raise InvalidField(f"turns[{place}]", "must be a question and its answer")
        values.append({"question": turn[0], "answer": turn[1]})
    return values


def _set_labels(request: orchestrator_pb2.AskRequest, options: AskOptions) -> None:
    useful, references, metric = options.get("useful"), options.get("references"), options.get("metric")
    if useful is not None:
        request.labels.has_useful = True
        ids = several("useful", useful)
        request.labels.useful_passage_ids.extend(text("labels.useful_passage_ids", one) for one in ids)
    if references is not None:
        texts = several("references", references)
        request.labels.references.extend(text("labels.references", one) for one in texts)
    if metric is not None:
        request.labels.metric = enum_number("metric", metric, evaluator_pb2.UtilityMetric.DESCRIPTOR)
