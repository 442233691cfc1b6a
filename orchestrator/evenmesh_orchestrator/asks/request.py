"""Read AskRequests: every bound of orchestrator.proto, checked with the field named, and every default."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, Protocol

from evenmesh.common.v1 import common_pb2
from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb
from evenmesh.generator.v1 import generator_service_pb2 as generator_pb
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.wire import checks
from evenmesh.wire.errors import InvalidField
from evenmesh_core.answer_scores import AnswerMetric, check_references, scoring_ns
from evenmesh_core.earlier_words import EARLIER_TURNS, words
from evenmesh_core.errors import InvalidInput
from evenmesh_core.exposure_balance import MAX_STRENGTH
from evenmesh_kit.rpc.policies import target_of
from evenmesh_kit.security import agents
from evenmesh_orchestrator.asks.exposure import METRICS
from evenmesh_orchestrator.domain import Ask, Balance, EnsembleAsk, EnumNames, Sampling, word_of
from evenmesh_orchestrator.ensembles.definitions import (
    MAX_MEMBERS,
    MIN_MEMBERS,
    Ensemble,
    equal_weights,
)
from evenmesh_orchestrator.expressions.parser import ExpressionError
from evenmesh_orchestrator.expressions.sources import ResolvedExpression, SourceCatalogue

MAX_NAME_BYTES: Final = 128
"""Longest name of a retriever, reranker or model, and longest id of an agent, a run or a query. Bytes."""
DEFAULT_DEPTH: Final = 100
"""Default number of passages in the pool."""
DEFAULT_K: Final = 5
"""Default number of passages in a context."""
MAX_FUSION: Final = 10.0
"""Largest weight of the retriever's scores beside the reranker's. Nats per standard deviation."""
DEFAULT_RERANK_DEPTH: Final = 20
"""Default number of passages for the reranker."""

MAX_TURNS: Final = 100
"""Most earlier turns that an ask may carry."""
MAX_TURN_ANSWER_BYTES: Final = 65_536
"""Longest answer of such a turn. Bytes."""

MAX_REFERENCE_CHARACTERS: Final = 262_144
"""Most characters of all references of an ask."""
MAX_SCORING_CPU_S: Final = 5.0
"""Most time that scoring the answers of an ask may take, estimated before it begins. Seconds of one core."""

_ANSWER_TOKENS: Final = 256  # of answers whose length the ask does not bound
_CHARACTERS_PER_TOKEN: Final = 4
_MAX_SEED: Final = 2**63 - 1
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")

_DRAWN_SEEDS: Final = 2**32
"""Number of seeds that are drawn from: short enough to be typed."""
_DECODING_BOUNDS: Final = {"num_beams": (1, 16), "max_new_tokens": (1, 4096), "temperature": (0, 10)}
_SET_BY_EXPRESSIONS: Final = frozenset(
    {
        generator_pb.AUGMENTATION_RETRIEVAL_FREE,
        generator_pb.AUGMENTATION_PARAMETRIC_KNOWLEDGE,
        generator_pb.AUGMENTATION_COMPRESSION,
    }
)


@dataclass(frozen=True, slots=True)
class Defaults:
    """What requests may leave out, and what they can name.

    Attributes:
        collection: collection of asks that name none.
        reranker: reranker of asks that name none.
        sources: sources of expressions; only ``PK`` and ``ReFree`` by default.
        ensembles: ensembles by name.
    """

    collection: str
    reranker: str
    sources: SourceCatalogue = field(default_factory=SourceCatalogue)
    ensembles: Mapping[str, Ensemble] = field(default_factory=dict)


def read_ask(request: pb.AskRequest, defaults: Defaults) -> Ask:
    """Read an ask: check every bound and fill in every default.

    Raises:
        InvalidField: a bound of the contract is broken, or fields contradict each other.
        PermissionDenied: the caller is bound to other agents.
    """
    question = checks.text("question", request.question)
    expression = _expression(request, defaults.sources) if request.expression else None
    source = request.WhichOneof("source")
    candidates: Sequence[common_pb2.Passage] | None = None
    if source == "candidates":
        candidates = list(request.candidates.passages)
        checks.passages("candidates.passages", candidates)
    collection = "" if candidates is not None or expression is not None else defaults.collection
    if source == "collection":
        collection = checks.name("collection", request.collection)
    if expression is not None:
        # An expression sets its own sizes; the largest possible context is bounded like k.
        depth = max([place.depth for place in expression.places.values()], default=1)
        depth = k = rerank_depth = max(1, depth, expression.max_passages)
    else:
        depth, k, rerank_depth = _sizes(request, len(candidates) if candidates is not None else None)
    seeds = _Seeds.of(request)
    sampling = _sampling(request.sampling, seeds.rankings) if request.HasField("sampling") else None
    reranker = _name("reranker", request.reranker) or defaults.reranker
    if expression is not None:
        reranker = _reranker(expression, request, reranker)
    sampling_stage = request.sampling_stage
    check_enum("sampling_stage", sampling_stage, pb.SamplingStage)
    if sampling_stage == pb.SAMPLING_STAGE_UNSPECIFIED:
        # The last stage that orders decides what is shown; it would undo sampling before it.
        last_is_retriever = reranker == "none"
        sampling_stage = pb.SAMPLING_STAGE_RETRIEVER if last_is_retriever else pb.SAMPLING_STAGE_RERANKER
    if sampling is not None:
        if sampling_stage == pb.SAMPLING_STAGE_RERANKER and reranker == "none":
            raise InvalidField("sampling_stage", "must be retriever: there is no reranker")
        if (
            sampling.target is not None
            and sampling_stage == pb.SAMPLING_STAGE_RETRIEVER
            and reranker != "none"
        ):
            raise InvalidField(
                "sampling_stage",
                "must be reranker with a target: a reranker that orders each sample changes what is shown",
            )
        if expression is not None:
            _check_sampling(expression, sampling_stage)
        if sampling.balance is not None:
            _check_balance(collection, sampling_stage)
    most = 1 if sampling is None else sampling.num_rankings
    num_answers = request.num_answers if request.HasField("num_answers") else most
    checks.between("num_answers", num_answers, 0, most)
    augmentation = request.augmentation
    check_enum("augmentation", augmentation, generator_pb.Augmentation)
    _check_decoding(request.decoding)
    labels = _labels(request.labels, num_answers, request.decoding)
    _check_turns(request.turns)
    _name("agent.task_id", request.agent.task_id)
    _name("agent.model_id", request.agent.model_id)
    agents.check(request.agent.task_id, request.agent.model_id)
    return Ask(
        id=secrets.token_hex(16),
        question=question,
        collection=collection,
        candidates=candidates,
        retriever=_name("retriever", request.retriever),
        reranker=reranker,
        names_reranker=bool(request.reranker),
        model=_name("model", request.model),
        depth=depth,
        k=k,
        rerank_depth=rerank_depth,
        sampling=sampling,
        sampling_stage=sampling_stage,
        augmentation=augmentation if expression is None else _augmentation(expression, augmentation),
        decoding=seeds.decoding,
        num_answers=num_answers,
        agent=request.agent,
        run_id=_name("run_id", request.run_id) or f"asks-{datetime.now(UTC):%Y-%m-%d}",
        query_id=_name("query_id", request.query_id) or hashlib.sha256(question.encode()).hexdigest()[:16],
        labels=labels,
        observe=not request.skip_observation,
        want_report=request.want_report and not request.skip_observation,
        filter=request.filter if request.HasField("filter") else None,
        expression=expression,
        search=_search_text(request, question),
        adds_words=not request.search,
        turns=tuple(request.turns if request.template else request.turns[-EARLIER_TURNS:]),
        template=_name("template", request.template),
        fusion=_fusion(request, reranker),
        drawn_seed=seeds.drawn,
    )


def read_ensemble(request: pb.AskRequest, defaults: Defaults) -> EnsembleAsk:
    """Read an ask of an ensemble: every member as a separate ask.

    Raises:
        InvalidField: a bound of the contract is broken, or fields contradict each other.
    """
    others = {
        "sampling": request.HasField("sampling"),
        "num_answers": request.HasField("num_answers"),
        "expression": bool(request.expression),
        "template": bool(request.template),
    }
    for name, given in others.items():
        if given:
            raise InvalidField(name, "cannot be given with an ensemble")
    if request.augmentation != generator_pb.AUGMENTATION_UNSPECIFIED:
        raise InvalidField("augmentation", "cannot be given with an ensemble: its expressions set it")
    ensemble = _ensemble(request, defaults.ensembles)
    labels = _labels(request.labels, len(ensemble.members), request.decoding)
    shared = pb.AskRequest()
    shared.CopyFrom(request)
    shared.ClearField("ensemble")
    shared.ClearField("labels")
    seeds = _Seeds.of(request)
    shared.decoding.CopyFrom(seeds.decoding)
    members = []
    texts: set[str] = set()
    for place, member in enumerate(ensemble.members):
        one = pb.AskRequest()
        one.CopyFrom(shared)
        one.expression = member
        try:
            expression = defaults.sources.read(member)
        except ExpressionError as error:
            raise InvalidField(f"ensemble.expressions[{place}]", str(error)) from None
        if expression.text in texts:
            raise InvalidField(f"ensemble.expressions[{place}]", f"is a duplicate: {expression.text}")
        texts.add(expression.text)
        if not expression.reranks:
            one.reranker = ""
            one.ClearField("fusion")
        members.append(replace(read_ask(one, defaults), labels=labels, drawn_seed=seeds.drawn))
    name = request.ensemble.name or ", ".join(ensemble.members)
    if len(name.encode()) > MAX_NAME_BYTES:
        name = name.encode()[: MAX_NAME_BYTES - len("…".encode())].decode(errors="ignore") + "…"
    return EnsembleAsk(members[0], tuple(members), ensemble.vote(request.agent.task_id), name)


class _Enum(EnumNames, Protocol):
    def keys(self) -> Sequence[str]: ...
    def values(self) -> Sequence[int]: ...


def check_enum(field: str, value: int, enum: _Enum) -> None:
    """Raise InvalidField if a value is not in its enum."""
    if value not in enum.values():
        raise InvalidField(field, f"must be one of {', '.join(enum.keys())}, got {value}")


def _sizes(request: pb.AskRequest, inline: int | None) -> tuple[int, int, int]:
    """Return the sizes of the pool, of the context, and of the list to rerank."""
    depth = request.depth if request.HasField("depth") else min(inline or DEFAULT_DEPTH, 1000)
    checks.between("depth", depth, 1, 1000)
    if request.HasField("k"):
        k = checks.between("k", request.k, 1, 100)
        if k > depth:
            raise InvalidField("k", f"must be at most depth, {depth}, got {k}")
        if inline is not None and k > inline:
            raise InvalidField("k", f"must be at most the number of candidates, {inline}, got {k}")
    else:
        k = min(DEFAULT_K, depth)
    if inline is not None:
        depth = min(depth, inline)
        k = min(k, inline)
    if request.HasField("rerank_depth"):
        rerank_depth = checks.between("rerank_depth", request.rerank_depth, k, depth)
    else:
        rerank_depth = max(k, min(DEFAULT_RERANK_DEPTH, depth))
    return depth, k, rerank_depth


def _fusion(request: pb.AskRequest, reranker: str) -> float | None:
    if not request.HasField("fusion"):
        return None
    weight = checks.between("fusion", request.fusion, 0.0, MAX_FUSION)
    if weight > 0 and reranker == "none":
        raise InvalidField("fusion", "must be 0 without a reranker: there is nothing to fuse with")
    return weight


def _expression(request: pb.AskRequest, sources: SourceCatalogue) -> ResolvedExpression:
    """Return the expression; check that no other field says where passages come from."""
    source = request.WhichOneof("source")
    others = {
        source or "": source is not None,
        "retriever": bool(request.retriever),
        "k": request.HasField("k"),
        "rerank_depth": request.HasField("rerank_depth"),
    }
    for name, given in others.items():
        if given:
            raise InvalidField(name, "cannot be given with an expression, which sets it")
    depth = checks.between("depth", request.depth, 1, 1000) if request.HasField("depth") else None
    try:
        expression = sources.read(request.expression, depth=depth)
    except ExpressionError as error:
        raise InvalidField("expression", str(error)) from None
    if request.HasField("filter") and (expression.uses_knowledge or not expression.places):
        raise InvalidField(
            "filter", f"cannot apply to {expression.text}: a model's own knowledge has no attributes"
        )
    return expression


def _ensemble(request: pb.AskRequest, ensembles: Mapping[str, Ensemble]) -> Ensemble:
    asked = request.ensemble
    if bool(asked.name) == bool(asked.expressions):
        raise InvalidField("ensemble", "must have either a name or expressions")
    if asked.name:
        ensemble = ensembles.get(_name("ensemble.name", asked.name))
        if ensemble is None:
            known = f"it has {', '.join(ensembles)}" if ensembles else "it has none"
            raise InvalidField("ensemble.name", f"the orchestrator has no ensemble {asked.name!r}; {known}")
        return ensemble
    members = tuple(asked.expressions)
    checks.between("ensemble.expressions", len(members), MIN_MEMBERS, MAX_MEMBERS)
    return equal_weights(members)


def _reranker(expression: ResolvedExpression, request: pb.AskRequest, reranker: str) -> str:
    """Return the reranker of an expression; ``none`` where nothing is reranked."""
    if expression.reranks:
        if reranker == "none":
            raise InvalidField("reranker", f"must not be none: {expression.text} reranks (@RR)")
        return reranker
    if request.reranker not in ("", "none"):
        raise InvalidField("reranker", f"cannot be given: {expression.text} reranks nothing (no @RR)")
    return "none"


def _check_sampling(expression: ResolvedExpression, stage: int) -> None:
    part = expression.sampled_part
    if part is None:
        raise InvalidField(
            "sampling",
            f"{expression.text} has no one list of scores to sample from; a single source such as Wiki@10 "
            "has one, and so has a list that is reranked as a whole, such as (SE&Wiki@20)@RR@10",
        )
    wanted = pb.SAMPLING_STAGE_RERANKER if part.reranked else pb.SAMPLING_STAGE_RETRIEVER
    if stage != wanted:
        word = word_of(pb.SamplingStage, wanted)
        raise InvalidField("sampling_stage", f"must be the {word} for {expression.text}")


def _augmentation(
    expression: ResolvedExpression, asked: generator_pb.Augmentation.ValueType
) -> generator_pb.Augmentation.ValueType:
    """Return how the model receives what an expression finds."""
    if expression.parsed.is_retrieval_free:
        needed = generator_pb.AUGMENTATION_RETRIEVAL_FREE
    elif expression.parsed.is_parametric:
        needed = generator_pb.AUGMENTATION_PARAMETRIC_KNOWLEDGE
    elif expression.parsed.compressed:
        needed = generator_pb.AUGMENTATION_COMPRESSION
    else:
        if asked in _SET_BY_EXPRESSIONS:
            raise InvalidField("augmentation", f"contradicts {expression.text}")
        return asked
    if asked not in (generator_pb.AUGMENTATION_UNSPECIFIED, needed):
        word = word_of(generator_pb.Augmentation, needed)
        raise InvalidField("augmentation", f"must be {word} or unset for {expression.text}")
    return needed


@dataclass(frozen=True, slots=True)
class _Seeds:
    """Seeds of what an ask draws; where it gives none, one is drawn for both rankings and words."""

    rankings: int
    decoding: generator_pb.Decoding
    drawn: int | None

    @classmethod
    def of(cls, request: pb.AskRequest) -> _Seeds:
        """Return those of an ask."""
        sampling, decoding = request.sampling, request.decoding
        samples = request.HasField("sampling")
        words = decoding.temperature > 0 and not decoding.HasField("seed")
        drawn = None
        if not sampling.HasField("seed") and (samples or words):
            drawn = secrets.randbelow(_DRAWN_SEEDS)
        rankings = sampling.seed if drawn is None else drawn
        if words:
            decoding = generator_pb.Decoding()
            decoding.CopyFrom(request.decoding)
            decoding.seed = rankings
        return cls(rankings, decoding, drawn)


def _sampling(message: common_pb2.Sampling, seed: int) -> Sampling:
    alpha = message.alpha if message.HasField("alpha") else 1.0
    num_rankings = message.num_rankings if message.HasField("num_rankings") else 1
    _check_seed("sampling.seed", message.seed)
    checks.between("sampling.alpha", alpha, 0, 100)
    target = target_of("sampling", message)
    return Sampling(
        alpha=alpha if target is None else None,
        num_rankings=checks.between("sampling.num_rankings", num_rankings, 1, 1000),
        seed=seed,
        target=target,
        balance=_balance(message) if message.HasField("balance") else None,
    )


def _balance(message: common_pb2.Sampling) -> Balance:
    given = message.balance
    if not message.HasField("alpha") and target_of("sampling", message) is not None:
        raise InvalidField("sampling.balance", "cannot be given with a target: give sampling.alpha")
    default = Balance()
    return Balance(
        strength=checks.between("sampling.balance.strength", given.strength, 0, MAX_STRENGTH)
        if given.HasField("strength")
        else default.strength,
        limit=checks.between("sampling.balance.limit", given.limit, 0, 1)
        if given.HasField("limit")
        else default.limit,
        half_life_days=checks.between("sampling.balance.half_life_days", given.half_life_days, 0.01, 3650)
        if given.HasField("half_life_days")
        else default.half_life_days,
    )


def _check_balance(collection: str, sampling_stage: int) -> None:
    if not collection:
        raise InvalidField("sampling.balance", "needs a collection, by which exposure is counted")
    if sampling_stage != pb.SAMPLING_STAGE_RERANKER:
        raise InvalidField("sampling.balance", "needs the sampling stage reranker")


def _check_decoding(message: generator_pb.Decoding) -> None:
    given = {field.name: value for field, value in message.ListFields()}
    if not 0 < given.get("top_p", 1.0) <= 1:
        raise InvalidField("decoding.top_p", f"must be in (0, 1], got {message.top_p}")
    _check_seed("decoding.seed", message.seed)
    for name, (low, high) in _DECODING_BOUNDS.items():
        if name in given:
            checks.between(f"decoding.{name}", given[name], low, high)
    checks.stop("decoding.stop", message.stop)


def _check_turns(turns: Sequence[generator_pb.Turn]) -> None:
    checks.between("turns", len(turns), 0, MAX_TURNS)
    for index, turn in enumerate(turns):
        checks.text(f"turns[{index}].question", turn.question)
        checks.at_most(f"turns[{index}].answer", turn.answer, MAX_TURN_ANSWER_BYTES)


def _search_text(request: pb.AskRequest, question: str) -> str:
    """Return the text to search for; empty where it is the question."""
    if request.search:
        return checks.text("search", request.search)
    newest = request.turns[-EARLIER_TURNS:]
    text = words(question, [turn.question for turn in newest])
    return "" if text == question else text


def _check_seed(field: str, seed: int) -> None:
    if seed > _MAX_SEED:
        raise InvalidField(field, f"must be in [0, 2^63 - 1], got {seed}")


def _labels(
    message: evaluator_pb.Labels, num_answers: int, decoding: generator_pb.Decoding
) -> evaluator_pb.Labels:
    """Return the labels with a metric and sorted, distinct ids; check the cost of scoring the answers."""
    for index, one in enumerate(message.useful_passage_ids):
        size = len(one.encode())
        if not 1 <= size <= checks.MAX_ID_BYTES:
            raise InvalidField(
                f"labels.useful_passage_ids[{index}]",
                f"must be 1 to {checks.MAX_ID_BYTES} bytes, has {size}",
            )
    if message.useful_passage_ids and not message.has_useful:
        raise InvalidField("labels.has_useful", "must be true where useful passages are named")
    check_enum("labels.metric", message.metric, evaluator_pb.UtilityMetric)
    metric = message.metric or evaluator_pb.UTILITY_METRIC_TOKEN_F1
    if message.references:
        _check_scoring(message.references, METRICS[metric], num_answers, decoding)
    return evaluator_pb.Labels(
        useful_passage_ids=sorted(set(message.useful_passage_ids)),
        has_useful=message.has_useful,
        references=message.references,
        metric=metric,
    )


def _check_scoring(
    references: Sequence[str], metric: AnswerMetric, num_answers: int, decoding: generator_pb.Decoding
) -> None:
    """Raise InvalidField where references are none, or scoring the answers one by one would take too long."""
    try:
        check_references(references, metric)
    except InvalidInput as error:
        raise InvalidField(f"labels.{error.argument}", "must be a rating from 1 to 5") from error
    held = sum(map(len, references))
    if held > MAX_REFERENCE_CHARACTERS:
        raise InvalidField(
            "labels.references",
            f"must have at most {MAX_REFERENCE_CHARACTERS:,} characters together, have {held:,}",
        )
    said = _CHARACTERS_PER_TOKEN * (decoding.max_new_tokens or _ANSWER_TOKENS)
    cpu_s = num_answers * scoring_ns(1, said, len(references), held, metric) * 1e-9
    if cpu_s > MAX_SCORING_CPU_S:
        raise InvalidField(
            "labels.references",
            f"scoring {num_answers:,} answers against them would take {cpu_s:.0f} CPU seconds, at most "
            f"{MAX_SCORING_CPU_S:g} are allowed: give fewer or shorter references, or ask for fewer or "
            "shorter answers",
        )


def _name(field: str, value: str) -> str:
    if _CONTROL.search(checks.at_most(field, value, MAX_NAME_BYTES)):
        raise InvalidField(field, "must not hold control characters")
    return value
