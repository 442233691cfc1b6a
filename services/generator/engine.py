"""What the generator does with models: chooses one, checks what it can do, writes, judges."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Final

from meshkit.errors import DeadlineExceeded, FailedPrecondition, InvalidField, MeshError, NotFound
from services.generator import relevance
from services.generator.domain import (
    Answer,
    Augmentation,
    Best,
    Cost,
    GenerationRequest,
    ModelDescription,
    Passage,
    RelevanceRequest,
)
from services.generator.ports import Cancellation, LanguageModel
from services.generator.prompts import TemplateLibrary

BACKGROUND_TEMPLATE = "eor-parametric-knowledge"
"""The prompt by which a model writes its own background document (ensemble of retrievers, appendix C.2)."""

COMPRESSION_TEMPLATE = "eor-compression"
"""The prompt by which a model summarises the passages (the same, ``@CP``)."""

DRAFT_TOKENS = 256
"""Longest background document or summary: two hundred words, as the prompt of the latter says. Tokens."""

_IN_TWO_STEPS: Final[dict[Augmentation | None, tuple[Augmentation, str]]] = {
    Augmentation.PARAMETRIC_KNOWLEDGE: (Augmentation.RETRIEVAL_FREE, BACKGROUND_TEMPLATE),
    Augmentation.COMPRESSION: (Augmentation.IN_PROMPT, COMPRESSION_TEMPLATE),
}


@dataclass(frozen=True, slots=True)
class Finished:
    """An answer and the model that wrote it.

    ``reused``: whether it was computed for another request of the batch, and is here again;
    ``written_tokens``: tokens that were written for it, those of the document it was drafted from counted.
    """

    answer: Answer
    model: ModelDescription
    reused: bool = field(default=False, compare=False)
    written_tokens: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class BatchCost:
    """What a batch cost, and what it was spared; counts of answers and of tokens, [0, inf).

    ``reused_answers`` were the same as another one of the batch; ``computed_tokens`` and ``reused_tokens``
    are of prompts, those of reused answers among the latter; ``written_tokens`` leaves reused answers out.
    """

    computed_answers: int = 0
    reused_answers: int = 0
    computed_tokens: int = 0
    reused_tokens: int = 0
    written_tokens: int = 0


def batch_cost(outcomes: Sequence[Finished | MeshError]) -> BatchCost:
    """What the answers of one batch cost together; errors cost nothing."""
    finished = [outcome for outcome in outcomes if isinstance(outcome, Finished)]
    reused = sum(one.reused for one in finished)
    return BatchCost(
        computed_answers=len(finished) - reused,
        reused_answers=reused,
        computed_tokens=sum(one.answer.cost.computed_tokens for one in finished),
        reused_tokens=sum(one.answer.cost.reused_tokens for one in finished),
        written_tokens=sum(one.written_tokens for one in finished),
    )


@dataclass(frozen=True, slots=True)
class Judged:
    """P(True) per passage, each in [0, 1], and the model that judged.

    ``unjudged``: so many passages, the last ones, were not judged.
    """

    probabilities: list[float]
    model: ModelDescription
    unjudged: int = 0


class Generator:
    """The use cases of the generator service.

    Args:
        models: every model of this server, the default first; names differ.
    """

    def __init__(self, models: Sequence[LanguageModel], templates: TemplateLibrary) -> None:
        self._models = {model.describe().name: model for model in models}
        if len(self._models) < len(models) or not models:
            raise ValueError("the generator needs at least one model, and models of different names")
        self._default = models[0].describe().name
        self._templates = templates

    def models(self) -> list[ModelDescription]:
        """Every model, the default first."""
        return [model.describe() for model in self._models.values()]

    def away(self) -> frozenset[str]:
        """Names of the models that cannot answer now."""
        return frozenset(name for name, model in self._models.items() if not model.up)

    def name_of(self, model: str) -> str:
        """Name of the model that a request means by ``model``; empty if there is no such model."""
        name = model or self._default
        return name if name in self._models else ""

    async def stream(
        self, request: GenerationRequest, cancel: Cancellation
    ) -> AsyncGenerator[str | Finished, None]:
        """Text deltas, then the answer.

        Raises:
            NotFound: no model or no template of that name.
            InvalidField: the model cannot do what is asked.
            MeshError: the model's own errors.
        """
        model, request = self._resolve(request)
        draft: _Written | None = None
        if request.augmentation in _IN_TWO_STEPS:
            (outcome,) = await _write(model, [_draft_request(request, model)], cancel)
            if isinstance(outcome, MeshError):
                raise outcome
            request, draft = _with_draft(request, outcome), outcome
        async with aclosing(model.generate_stream(request, cancel)) as parts:
            async for part in parts:
                yield part if isinstance(part, str) else _finished(_Written(part), draft, model)

    async def batch(
        self, requests: Sequence[GenerationRequest], cancel: Cancellation
    ) -> list[Finished | MeshError]:
        """One answer or one error per request, in order.

        What is asked twice is computed once, whatever its passages are called; long prompts go first, so that
        prompts of like length run together.

        Raises:
            DeadlineExceeded: no time is left for the batch.
        """
        outcomes: dict[int, Finished | MeshError] = {}
        wanted: dict[str, dict[int, GenerationRequest]] = {}
        for at, request in enumerate(requests):
            try:
                model, resolved = self._resolve(request)
            except MeshError as error:
                outcomes[at] = error
            else:
                wanted.setdefault(model.describe().name, {})[at] = _without_ids(resolved)
        for name, mine in wanted.items():
            answers = await _answer_all(self._models[name], list(mine.values()), cancel)
            outcomes |= zip(mine, answers, strict=True)
        return [outcomes[at] for at in range(len(requests))]

    async def relevance(
        self, request: RelevanceRequest, model: str, cancel: Cancellation, best: Best | None = None
    ) -> Judged:
        """P(True) of each passage (Yu et al., RankRAG, appendix D.1).

        Where only the ``best`` are wanted, passages are judged in their order until those are known.

        Raises:
            NotFound: no model or no template of that name.
            InvalidField: the template is of another kind, or does not show the turns.
            FailedPrecondition: the model cannot judge relevance.
            MeshError: the model's own errors.
        """
        judge = self._model(model)
        description = judge.describe()
        if not description.scores_relevance:
            raise FailedPrecondition("NO_RELEVANCE", f"{description.name} cannot judge relevance")
        _check_turns(request)
        if request.template:
            self._templates.judging(request.template, turns=bool(request.turns))
        ids = [passage.id for passage in request.passages]
        judged: list[float] = []
        for some in relevance.rounds(len(ids), None if best is None else best.count):
            part = replace(request, passages=request.passages[some])
            judged += await judge.score_relevance(part, cancel)
            if best and relevance.settled(judged, ids, best.count, best.tolerance):
                break
        return Judged(judged, description, len(ids) - len(judged))

    def _model(self, name: str) -> LanguageModel:
        try:
            return self._models[name or self._default]
        except KeyError:
            raise NotFound("model", f"no model {name!r}; there are {', '.join(self._models)}") from None

    def _resolve(self, request: GenerationRequest) -> tuple[LanguageModel, GenerationRequest]:
        """The model and the request with the augmentation it will use, checked against each other."""
        model = self._model(request.model)
        description = model.describe()
        augmentation = request.augmentation
        if augmentation is None:
            augmentation = description.augmentations[0] if request.passages else Augmentation.RETRIEVAL_FREE
        if augmentation not in description.augmentations:
            can = ", ".join(one.value for one in description.augmentations)
            raise InvalidField(
                "augmentation", f"{description.name} cannot do {augmentation.value}; it can do {can}"
            )
        takes_passages = augmentation not in (Augmentation.RETRIEVAL_FREE, Augmentation.PARAMETRIC_KNOWLEDGE)
        if takes_passages != bool(request.passages):
            need = "needs at least one passage" if takes_passages else "takes no passages"
            raise InvalidField("passages", f"{augmentation.value} {need}")
        _check_turns(request)
        if request.template:
            last = Augmentation.IN_PROMPT if augmentation in _IN_TWO_STEPS else augmentation
            self._templates.suiting(request.template, last, turns=bool(request.turns))
        most = description.max_new_tokens
        if request.decoding.max_new_tokens > most:
            raise InvalidField("decoding.max_new_tokens", f"must be at most {most} for {description.name}")
        return model, replace(request, augmentation=augmentation)


@dataclass(frozen=True, slots=True)
class _Written:
    """What a model wrote, and whether it was for another request first."""

    answer: Answer
    reused: bool = False


async def _answer_all(
    model: LanguageModel, requests: Sequence[GenerationRequest], cancel: Cancellation
) -> list[Finished | MeshError]:
    """Answers of one model; what it answers from is drafted first where that is asked for."""
    own = [at for at, one in enumerate(requests) if one.augmentation in _IN_TWO_STEPS]
    outcomes: dict[int, Finished | MeshError] = {}
    drafts: dict[int, _Written] = {}
    final = dict(enumerate(requests))
    written = await _write(model, [_draft_request(requests[at], model) for at in own], cancel)
    for at, draft in zip(own, written, strict=True):
        if isinstance(draft, MeshError):
            outcomes[at] = draft
            del final[at]
        else:
            final[at] = _with_draft(requests[at], draft)
            drafts[at] = draft
    written = await _write(model, list(final.values()), cancel)
    for at, one in zip(final, written, strict=True):
        outcomes[at] = one if isinstance(one, MeshError) else _finished(one, drafts.get(at), model)
    return [outcomes[at] for at in range(len(requests))]


async def _write(
    model: LanguageModel, requests: Sequence[GenerationRequest], cancel: Cancellation
) -> list[_Written | MeshError]:
    """One outcome per request, in order; equal requests are written once, long ones first."""
    if not requests:
        return []
    places: dict[GenerationRequest, int] = {}
    # A request is hashed once: a hundred passages take a while.
    place_of = [places.setdefault(request, len(places)) for request in requests]
    distinct = list(places)
    order = sorted(range(len(distinct)), key=lambda at: _length(distinct[at]), reverse=True)
    answers: Sequence[Answer | MeshError]
    try:
        answers = await model.generate_batch([distinct[at] for at in order], cancel)
    except DeadlineExceeded:
        raise
    except MeshError as error:  # of this model alone: the batch may hold requests of others
        answers = [error] * len(order)
    written = dict(zip(order, answers, strict=True))
    outcomes: list[_Written | MeshError] = []
    seen: set[int] = set()
    for place in place_of:
        answer = written[place]
        if isinstance(answer, MeshError):
            outcomes.append(answer)
        else:
            outcomes.append(_Written(_again(answer), reused=True) if place in seen else _Written(answer))
            seen.add(place)
    return outcomes


def _length(request: GenerationRequest) -> int:
    """Characters that the model reads; the question goes with each passage where each is read alone."""
    turns = sum(len(one.question) + len(one.answer) for one in request.turns)
    passages = sum(len(one.title) + len(one.text) for one in request.passages)
    alone = request.augmentation is Augmentation.FUSION_IN_DECODER
    return turns + passages + len(request.question) * (len(request.passages) if alone else 1)


def _again(answer: Answer) -> Answer:
    """The answer for one more request: nothing of its prompt is computed again."""
    return replace(answer, cost=replace(answer.cost, computed_tokens=0, reused_tokens=answer.prompt_tokens))


def _draft_request(request: GenerationRequest, model: LanguageModel) -> GenerationRequest:
    """Asks the model for the document it will answer from: its own knowledge, or a summary."""
    augmentation, template = _IN_TWO_STEPS[request.augmentation]
    most = min(DRAFT_TOKENS, model.describe().max_new_tokens)
    return replace(
        request,
        augmentation=augmentation,
        template=template,
        decoding=replace(request.decoding, max_new_tokens=most),
        turns=(),  # the prompts of the papers have no place for them
    )


def _with_draft(request: GenerationRequest, draft: _Written) -> GenerationRequest:
    """Asks the question with what the model wrote as the only passage."""
    written = Passage("draft", "", draft.answer.text)
    return replace(request, augmentation=Augmentation.IN_PROMPT, passages=(written,))


def _without_ids(request: GenerationRequest) -> GenerationRequest:
    """The request as the model sees it: contexts of the same texts are the same."""
    return replace(
        request, model="", passages=tuple(Passage("", one.title, one.text) for one in request.passages)
    )


def _finished(written: _Written, draft: _Written | None, model: LanguageModel) -> Finished:
    """The answer with what was read, left out and spent while its document was drafted."""
    answer = written.answer
    tokens = 0 if written.reused else answer.completion_tokens
    if draft is not None:
        tokens += 0 if draft.reused else draft.answer.completion_tokens
        answer = replace(
            answer,
            prompt_tokens=answer.prompt_tokens + draft.answer.prompt_tokens,
            dropped_passages=draft.answer.dropped_passages,
            cut_passages=draft.answer.cut_passages,
            cost=_one_after_the_other(draft.answer.cost, answer.cost),
        )
    return Finished(answer, model.describe(), written.reused, tokens)


def _one_after_the_other(draft: Cost, answer: Cost) -> Cost:
    """What both steps cost together; the first token that anybody sees is the second step's."""
    return Cost(
        queue_s=draft.queue_s + answer.queue_s,
        first_token_s=draft.total_s + answer.first_token_s,
        total_s=draft.total_s + answer.total_s,
        computed_tokens=draft.computed_tokens + answer.computed_tokens,
        reused_tokens=draft.reused_tokens + answer.reused_tokens,
        batch_rows=max(draft.batch_rows, answer.batch_rows),
    )


def _check_turns(request: GenerationRequest | RelevanceRequest) -> None:
    if request.turns and not request.template:
        raise InvalidField("turns", "need a template that shows them; name one, see docs/prompts.md")
