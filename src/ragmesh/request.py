"""How a question is to be answered: the options of an ask, and the request they make."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypedDict, TypeVar

from meshkit.checks import PassageLike
from meshkit.errors import InvalidField
from ragmesh.common.v1 import common_pb2
from ragmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb2
from ragmesh.filters import Filter, filter_message
from ragmesh.generator.v1 import generator_service_pb2 as generator_pb2
from ragmesh.orchestrator.v1 import orchestrator_service_pb2 as orchestrator_pb2
from ragmesh.texts import text

Metric = Literal["exact_match", "token_f1", "rouge1", "rouge2", "rouge_l", "accuracy"]
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
    """How tokens are chosen; None leaves the choice to the generator.

    Attributes:
        num_beams: beams, 1 (greedy) to 16.
        max_new_tokens: longest answer in tokens, 1 to 4096.
        temperature: sampling temperature, 0 (no sampling) to 10.
        top_p: nucleus mass when sampling, above 0 up to 1.
        seed: seed when sampling, 0 to 2^63 - 1.
    """

    num_beams: int | None = None
    max_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None


class AskOptions(TypedDict, total=False):
    """How a question is to be answered; what is left out, or None, is left to the mesh.

    Attributes:
        collection: name of the collection to ask; the server's default without it.
        passages: candidates to use instead of a collection, 1 to 1,000.
        expression: sources of the mesh in the notation of docs/expressions.md, such as ``SE@RR@5&Wiki@5``,
            instead of ``collection``, ``passages``, ``retriever``, ``k`` and ``rerank_depth``.
        ensemble: name of an ensemble that the mesh is configured with, or 2 to 20 expressions whose answers
            vote; instead of one expression, and of ``alpha`` and ``samples``.
        filter: what attributes of passages that may be found are, see :data:`ragmesh.Filter`.
        alpha: fairness dial, 0 (uniform) to 100 (follows the scores); sampled rankings if given.
        samples: rankings to draw, 1 to 1,000; sampled rankings if given.
        seed: seed of the sampling, 0 to 2^63 - 1; 0 without it.
        sampling_stage: over whose scores rankings are sampled; without it the reranker's, or the retriever's
            where the reranker is ``none``.
        k: passages the generator is given, 1 to 100; 5 without it.
        depth: size of the candidate pool, 1 to 1,000; 100 without it.
        rerank_depth: passages handed to the reranker, k to depth.
        retriever: by name.
        reranker: ``cross-encoder``, ``rankrag`` or ``none``.
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
        observe: tell the evaluator about this ask; True without it.
        run_report: wait for the run's report and have it in :class:`ragmesh.events.Report`; False without it.
        search: what passages are found and ranked for, where that is not the question.
        template: prompt by name, such as ``lamp-4``; the model's own without it.
    """

    collection: str | None
    passages: Iterable[PassageLike] | None
    expression: str | None
    ensemble: str | Sequence[str] | None
    filter: Filter | None
    alpha: float | None
    samples: int | None
    seed: int
    sampling_stage: SamplingStage | None
    k: int | None
    depth: int | None
    rerank_depth: int | None
    retriever: str | None
    reranker: str | None
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


_METRICS: Final[dict[str, "evaluator_pb2.UtilityMetric.ValueType"]] = {
    "exact_match": evaluator_pb2.UTILITY_METRIC_EXACT_MATCH,
    "token_f1": evaluator_pb2.UTILITY_METRIC_TOKEN_F1,
    "rouge1": evaluator_pb2.UTILITY_METRIC_ROUGE1,
    "rouge2": evaluator_pb2.UTILITY_METRIC_ROUGE2,
    "rouge_l": evaluator_pb2.UTILITY_METRIC_ROUGE_L,
    "accuracy": evaluator_pb2.UTILITY_METRIC_ACCURACY,
}
AUGMENTATIONS: Final[dict[str, "generator_pb2.Augmentation.ValueType"]] = {
    "in_prompt": generator_pb2.AUGMENTATION_IN_PROMPT,
    "fusion_in_decoder": generator_pb2.AUGMENTATION_FUSION_IN_DECODER,
    "retrieval_free": generator_pb2.AUGMENTATION_RETRIEVAL_FREE,
    "parametric_knowledge": generator_pb2.AUGMENTATION_PARAMETRIC_KNOWLEDGE,
    "compression": generator_pb2.AUGMENTATION_COMPRESSION,
}
"""What each way is called on the wire."""
_STAGES: Final[dict[str, "orchestrator_pb2.SamplingStage.ValueType"]] = {
    "retriever": orchestrator_pb2.SAMPLING_STAGE_RETRIEVER,
    "reranker": orchestrator_pb2.SAMPLING_STAGE_RERANKER,
}


def ask_request(question: str, options: AskOptions) -> orchestrator_pb2.AskRequest:
    """The request that asks ``question`` with ``options``.

    Only what cannot be said on the wire is refused here; ranges are the mesh's to check.

    Raises:
        InvalidField: a value that does not fit its field, or both a collection and passages.
        TypeError: an option that does not exist.
    """
    if unknown := options.keys() - AskOptions.__annotations__.keys():
        raise TypeError(f"ask() has no option {', '.join(sorted(unknown))}")
    request = orchestrator_pb2.AskRequest(
        question=text("question", question),
        retriever=text("retriever", options.get("retriever")),
        reranker=text("reranker", options.get("reranker")),
        model=text("model", options.get("model")),
        depth=whole("depth", options.get("depth")),
        k=whole("k", options.get("k")),
        rerank_depth=whole("rerank_depth", options.get("rerank_depth")),
        num_answers=whole("num_answers", options.get("num_answers")),
        run_id=text("run_id", options.get("run_id")),
        query_id=text("query_id", options.get("query_id")),
        skip_observation=not options.get("observe", True),
        want_report=options.get("run_report", False),
        expression=text("expression", options.get("expression")),
        search=text("search", options.get("search")),
        template=text("template", options.get("template")),
    )
    if (ensemble := options.get("ensemble")) is not None:
        if isinstance(ensemble, str):
            request.ensemble.name = text("ensemble.name", ensemble)
        else:
            request.ensemble.expressions.extend(text("ensemble.expressions", one) for one in ensemble)
    if (wanted := options.get("filter")) is not None:
        request.filter.CopyFrom(filter_message(wanted))
    collection, passages = options.get("collection"), options.get("passages")
    if collection is not None and passages is not None:
        raise InvalidField("collection", "give a collection or passages, not both")
    if collection is not None:
        request.collection = text("collection", collection)
    if passages is not None:
        request.candidates.SetInParent()
        request.candidates.passages.extend(passage_message(passage) for passage in passages)
    if (augmentation := options.get("augmentation")) is not None:
        request.augmentation = choice("augmentation", augmentation, AUGMENTATIONS)
    if (stage := options.get("sampling_stage")) is not None:
        request.sampling_stage = choice("sampling_stage", stage, _STAGES)
    _set_sampling(request, options)
    _set_labels(request, options)
    if (decoding := options.get("decoding")) is not None:
        request.decoding.CopyFrom(decoding_message(decoding))
    if (agent := options.get("agent")) is not None:
        request.agent.task_id = text("agent.task_id", agent.task_id)
        request.agent.model_id = text("agent.model_id", agent.model_id)
    return request


def decoding_message(decoding: Decoding) -> generator_pb2.Decoding:
    """The wire form of a decoding.

    Raises:
        InvalidField: a number that does not fit its field.
    """
    return generator_pb2.Decoding(
        num_beams=whole("decoding.num_beams", decoding.num_beams),
        max_new_tokens=whole("decoding.max_new_tokens", decoding.max_new_tokens),
        temperature=decoding.temperature,
        top_p=decoding.top_p,
        seed=whole("decoding.seed", decoding.seed, bits=64),
    )


def passage_message(passage: PassageLike) -> common_pb2.Passage:
    """The wire form of a passage.

    Raises:
        InvalidField: a part that is not valid Unicode text.
    """
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


def whole(field: str, value: int | None, *, bits: int = 32) -> int | None:
    """``value`` if it fits an unsigned field of ``bits`` bits.

    Raises:
        InvalidField: it does not.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidField(field, f"must be a whole number, not {type(value).__name__}")
    if not 0 <= value < 2**bits:
        raise InvalidField(field, f"must be from 0 to 2^{bits} - 1, not {value}")
    return value


def _set_sampling(request: orchestrator_pb2.AskRequest, options: AskOptions) -> None:
    alpha, samples = options.get("alpha"), options.get("samples")
    if alpha is None and samples is None:
        return
    request.sampling.seed = whole("sampling.seed", options.get("seed", 0), bits=64) or 0
    if alpha is not None:
        request.sampling.alpha = alpha
    if samples is not None:
        request.sampling.num_rankings = whole("sampling.num_rankings", samples) or 0


def _set_labels(request: orchestrator_pb2.AskRequest, options: AskOptions) -> None:
    useful, references = options.get("useful"), options.get("references")
    if useful is not None:
        request.labels.has_useful = True
        request.labels.useful_passage_ids.extend(text("labels.useful_passage_ids", one) for one in useful)
    if references is not None:
        request.labels.references.extend(text("labels.references", one) for one in references)
    if (metric := options.get("metric")) is not None:
        request.labels.metric = choice("metric", metric, _METRICS)


_V = TypeVar("_V", bound=int)


def choice(field: str, value: str, choices: dict[str, _V]) -> _V:
    if value not in choices:
        raise InvalidField(field, f"must be one of {', '.join(choices)}, not {value!r}")
    return choices[value]
