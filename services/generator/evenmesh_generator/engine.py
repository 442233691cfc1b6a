"""Choose a model for a request, check what it can do, generate answers and judge relevance."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from dataclasses import dataclass, field, replace
from typing import Final

import grpc

from evenmesh.wire.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    InvalidField,
    MeshError,
    NotFound,
    Overloaded,
)
from evenmesh_generator import call_cost, relevance
from evenmesh_generator.call_cost import DRAFT_TOKENS
from evenmesh_generator.domain import (
    Answer,
    Augmentation,
    Best,
    Cost,
    Decoding,
    GenerationRequest,
    ModelDescription,
    Passage,
    RelevanceRequest,
)
from evenmesh_generator.ports import Cancellation, LanguageModel
from evenmesh_generator.prompts import TemplateLibrary

BACKGROUND_TEMPLATE = "eor-parametric-knowledge"
"""The prompt by which a model writes its own background document (Li et al., 2024, appendix C.2)."""

COMPRESSION_TEMPLATE = "eor-compression"
"""The prompt by which a model summarises the passages (the same, ``@CP``)."""

_ALONE: Final = 16
"""How many times what a call may cost one answer or passage alone may cost: it cannot be split."""

_AT_ONCE: Final = 64
"""Answers of one batch that wait or run at a time: as many as the rows of a running batch."""

Admit = Callable[[GenerationRequest | RelevanceRequest], AbstractAsyncContextManager[object]]
"""Returns a context that holds the room for one piece of a call while the piece runs."""

_IN_TWO_STEPS: Final[dict[Augmentation | None, tuple[Augmentation, str]]] = {
    Augmentation.PARAMETRIC_KNOWLEDGE: (Augmentation.RETRIEVAL_FREE, BACKGROUND_TEMPLATE),
    Augmentation.COMPRESSION: (Augmentation.IN_PROMPT, COMPRESSION_TEMPLATE),
}


@dataclass(frozen=True, slots=True)
class GeneratedAnswer:
    """An answer and the model that wrote it.

    ``reused``: whether it was computed for another request of the batch;
    ``written_tokens``: tokens that were generated for it, those of its draft included.
    """

    answer: Answer
    model: ModelDescription
    reused: bool = field(default=False, compare=False)
    written_tokens: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class BatchCost:
    """What a batch cost, and what reuse saved; counts of answers and of tokens, [0, inf).

    ``reused_answers`` were the same as another one of the batch; ``computed_tokens`` and ``reused_tokens``
    are of prompts, those of reused answers among the latter; ``written_tokens`` leaves reused answers out.
    """

    computed_answers: int = 0
    reused_answers: int = 0
    computed_tokens: int = 0
    reused_tokens: int = 0
    written_tokens: int = 0


def batch_cost(outcomes: Sequence[GeneratedAnswer | MeshError]) -> BatchCost:
    """Return what the answers of one batch cost together; errors cost nothing."""
    finished = [outcome for outcome in outcomes if isinstance(outcome, GeneratedAnswer)]
    reused = sum(one.reused for one in finished)
    return BatchCost(
        computed_answers=len(finished) - reused,
        reused_answers=reused,
        computed_tokens=sum(one.answer.cost.computed_tokens for one in finished),
        reused_tokens=sum(one.answer.cost.reused_tokens for one in finished),
        written_tokens=sum(one.written_tokens for one in finished),
    )


@dataclass(frozen=True, slots=True)
class RelevanceScores:
    """P(True) per passage, each in [0, 1], and the model that judged.

    ``unjudged``: how many passages, the last ones, were not judged.
    """

    probabilities: list[float]
    model: ModelDescription
    unjudged: int = 0


@dataclass(frozen=True, slots=True)
class CallLimit:
    """Most tokens that one call may cost, see :mod:`evenmesh_generator.call_cost`.

    One passage or one answer alone may cost sixteen times as much, so that calls can be split into some that
    fit.

    Attributes:
        tokens: [1, inf).
        setting: name of the setting that it comes from, for errors.
    """

    tokens: int
    setting: str = ""

    def check(self, cost: int, number: int, field: str) -> None:
        """Raise if ``number`` passages or answers cost too much together.

        Raises:
            MeshError: RESOURCE_EXHAUSTED, ``REQUEST_TOO_LARGE``; trying again does not help.
        """
        most = self.tokens if number > 1 else _ALONE * self.tokens
        if cost > most:
            what, instead = (
                (f"{number} {field} together", "send fewer at once")
                if number > 1
                else ("the request alone", "ask for fewer passages, beams or tokens")
            )
            raise MeshError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "REQUEST_TOO_LARGE",
                f"{what} cost about {cost} tokens, and may cost {most}: {instead}, or raise {self.setting}",
                field=field,
            )


class Generator:
    """The use cases of the generator service.

    Args:
        models: every model of this server, the default first; names differ.
        limit: bounds each call; None: nothing does.
    """

    def __init__(
        self, models: Sequence[LanguageModel], templates: TemplateLibrary, limit: CallLimit | None = None
    ) -> None:
        self._models = {model.describe().name: model for model in models}
        if len(self._models) < len(models) or not models:
            raise ValueError("the generator needs at least one model, and models of different names")
        self._default = models[0].describe().name
        self._templates = templates
        self._limit = limit

    def models(self) -> list[ModelDescription]:
        """Return every model, the default first."""
        return [model.describe() for model in self._models.values()]

    def unavailable(self) -> frozenset[str]:
        """Return the names of the models that cannot answer now."""
        return frozenset(name for name, model in self._models.items() if not model.up)

    def name_of(self, model: str) -> str:
        """Return the name of the model that a request means by ``model``; empty if there is no such model."""
        name = model or self._default
        return name if name in self._models else ""

    def as_read(self, request: GenerationRequest) -> GenerationRequest:
        """Return the request without what its model does not read of a conversation.

        A request for a model that does not exist is returned as it is.
        """
        name = self.name_of(request.model)
        return _as_read(request, self._models[name].describe()) if name else request

    async def stream(
        self, request: GenerationRequest, cancel: Cancellation
    ) -> AsyncGenerator[str | GeneratedAnswer, None]:
        """Return the text deltas, then the answer.

        Raises:
            NotFound: no model or no template of that name.
            InvalidField: the model does not support the request.
            MeshError: RESOURCE_EXHAUSTED, the answer costs more than one alone may; the model's own errors.
        """
        model, request = self._resolve(request)
        if self._limit is not None:
            self._limit.check(call_cost.of_answers([request], model.describe()), 1, "passages")
        draft: _Output | None = None
        if request.augmentation in _IN_TWO_STEPS:
            written = await _answered(model, _draft_request(request, model), cancel)
            if isinstance(written, MeshError):
                raise written
            draft = _Output(written)
            request = _with_draft(request, draft)
        async with aclosing(model.generate_stream(request, cancel)) as parts:
            async for part in parts:
                yield part if isinstance(part, str) else _finished(_Output(part), draft, model)

    async def batch(
        self,
        requests: Sequence[GenerationRequest],
        cancel: Cancellation,
        admit: Admit = lambda _: nullcontext(),
    ) -> list[GeneratedAnswer | MeshError]:
        """Return one answer or one error per request, in order.

        Equal requests are computed once, whatever their passages' ids; long prompts go first, so that
        prompts of similar length run together. Each answer is admitted by itself, so that a large batch and
        the calls of others take turns.

        Raises:
            DeadlineExceeded: no time is left for the batch.
            Overloaded: as ``admit`` does.
            MeshError: RESOURCE_EXHAUSTED, they cost more than a call may.
        """
        outcomes: dict[int, GeneratedAnswer | MeshError] = {}
        wanted: dict[str, dict[int, GenerationRequest]] = {}
        for at, request in enumerate(requests):
            try:
                model, resolved = self._resolve(request)
            except MeshError as error:
                outcomes[at] = error
            else:
                wanted.setdefault(model.describe().name, {})[at] = _without_ids(resolved)
        if self._limit is not None:
            distinct = {name: list(dict.fromkeys(mine.values())) for name, mine in wanted.items()}
            cost = sum(
                call_cost.of_answers(mine, self._models[name].describe()) for name, mine in distinct.items()
            )
            self._limit.check(cost, sum(map(len, distinct.values())), "requests")
        for name, mine in wanted.items():
            answers = await _answer_all(self._models[name], list(mine.values()), cancel, admit)
            outcomes |= zip(mine, answers, strict=True)
        return [outcomes[at] for at in range(len(requests))]

    async def relevance(
        self,
        request: RelevanceRequest,
        model: str,
        cancel: Cancellation,
        best: Best | None = None,
        *,
        admit: Admit = lambda _: nullcontext(),
        piece: int | None = None,
    ) -> RelevanceScores:
        """Return P(True) of each passage (Yu et al., 2024, appendix D.1).

        With ``best``, passages are judged in their order until the best are known.

        Args:
            request: the question and the passages.
            model: name of the model; empty for the default.
            cancel: whether somebody still waits.
            best: how many of the best are wanted; None: judge all.
            admit: admits each piece of the passages.
            piece: most characters that a piece makes the model read, unless a passage alone has more; None:
                any number. Characters, [1, inf).

        Raises:
            NotFound: no model or no template of that name.
            InvalidField: the template is of another kind, or does not show the turns.
            FailedPrecondition: the model cannot judge relevance.
            MeshError: RESOURCE_EXHAUSTED, all passages cost more than a call may; the model's own errors.
        """
        judge = self._model(model)
        description = judge.describe()
        if not description.scores_relevance:
            raise FailedPrecondition("NO_RELEVANCE", f"{description.name} cannot judge relevance")
        if request.turns and not request.template:
            raise InvalidField(
                "turns", "need a template that shows them; name one, see docs/guides/prompts.md"
            )
        if request.template:
            self._templates.judging(request.template, turns=bool(request.turns))
        ids = [passage.id for passage in request.passages]
        if self._limit is not None:
            self._limit.check(call_cost.of_judgement(request, description), len(ids), "passages")
        judged: list[float] = []
        for some in relevance.rounds(len(ids), None if best is None else best.count):
            for passages in _pieces(request, request.passages[some], piece):
                part = replace(request, passages=passages)
                async with admit(part):
                    judged += await judge.score_relevance(part, cancel)
            if best and relevance.settled(judged, ids, best.count, best.tolerance):
                break
        return RelevanceScores(judged, description, len(ids) - len(judged))

    def _model(self, name: str) -> LanguageModel:
        try:
            return self._models[name or self._default]
        except KeyError:
            raise NotFound("model", f"no model {name!r}; there are {', '.join(self._models)}") from None

    def _resolve(self, request: GenerationRequest) -> tuple[LanguageModel, GenerationRequest]:
        """Return the model and the request with its augmentation, checked against each other."""
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
        if request.template:
            if not description.takes_template:
                raise InvalidField(
                    "template",
                    f"{description.name} reads passages in a form of its own and takes no template",
                )
            last = Augmentation.IN_PROMPT if augmentation in _IN_TWO_STEPS else augmentation
            self._templates.suiting(request.template, last, turns=bool(request.turns))
        most = description.max_new_tokens
        if request.decoding.max_new_tokens > most:
            raise InvalidField("decoding.max_new_tokens", f"must be at most {most} for {description.name}")
        return model, replace(
            _as_read(request, description),
            augmentation=augmentation,
            decoding=_decoding(request.decoding, description),
        )


@dataclass(frozen=True, slots=True)
class _Output:
    """A model's answer, and whether it was computed for another request."""

    answer: Answer
    reused: bool = False


async def _answer_all(
    model: LanguageModel, requests: Sequence[GenerationRequest], cancel: Cancellation, admit: Admit
) -> list[GeneratedAnswer | MeshError]:
    """Return the answers of one model; draft documents first where the augmentation asks for it."""
    own = [at for at, one in enumerate(requests) if one.augmentation in _IN_TWO_STEPS]
    outcomes: dict[int, GeneratedAnswer | MeshError] = {}
    drafts: dict[int, _Output] = {}
    final = dict(enumerate(requests))
    written = await _write(model, [_draft_request(requests[at], model) for at in own], cancel, admit)
    for at, draft in zip(own, written, strict=True):
        if isinstance(draft, MeshError):
            outcomes[at] = draft
            del final[at]
        else:
            final[at] = _with_draft(requests[at], draft)
            drafts[at] = draft
    written = await _write(model, list(final.values()), cancel, admit)
    for at, one in zip(final, written, strict=True):
        outcomes[at] = one if isinstance(one, MeshError) else _finished(one, drafts.get(at), model)
    return [outcomes[at] for at in range(len(requests))]


async def _write(
    model: LanguageModel, requests: Sequence[GenerationRequest], cancel: Cancellation, admit: Admit
) -> list[_Output | MeshError]:
    """Return one outcome per request, in order; compute equal requests once, long ones first."""
    places: dict[GenerationRequest, int] = {}
    # Hash every request once: a hundred passages take a while.
    place_of = [places.setdefault(request, len(places)) for request in requests]
    distinct = list(places)
    order = sorted(range(len(distinct)), key=lambda at: _length(distinct[at]), reverse=True)
    turn = asyncio.Semaphore(_AT_ONCE)

    async def answered(request: GenerationRequest) -> Answer | MeshError:
        async with turn:
            try:
                async with admit(request):
                    return await _answered(model, request, cancel)
            except (DeadlineExceeded, Overloaded):
                raise
            except MeshError as error:  # this request is larger than there is room for
                return error

    tasks = [asyncio.create_task(answered(distinct[at])) for at in order]
    try:
        answers = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    written = dict(zip(order, answers, strict=True))
    outcomes: list[_Output | MeshError] = []
    seen: set[int] = set()
    for place in place_of:
        answer = written[place]
        if isinstance(answer, MeshError):
            outcomes.append(answer)
        else:
            outcomes.append(_Output(_as_reused(answer), reused=True) if place in seen else _Output(answer))
            seen.add(place)
    return outcomes


async def _answered(
    model: LanguageModel, request: GenerationRequest, cancel: Cancellation
) -> Answer | MeshError:
    """Return the answer or the error of one request; raise only if no time is left."""
    try:
        return await model.generate(request, cancel)
    except MeshError as error:
        cancel.check()
        return error


def _pieces(
    request: RelevanceRequest, passages: Sequence[Passage], most: int | None
) -> Iterator[tuple[Passage, ...]]:
    """Yield the passages in pieces of at most ``most`` characters to read, of at least one passage each."""
    once = len(request.question) + sum(len(one.question) + len(one.answer) for one in request.turns)
    piece: list[Passage] = []
    read = 0
    for passage in passages:
        size = once + len(passage.title) + len(passage.text)
        if piece and most is not None and read + size > most:
            yield tuple(piece)
            piece, read = [], 0
        piece.append(passage)
        read += size
    yield tuple(piece)


def _length(request: GenerationRequest) -> int:
    """Return the characters that the model reads; Fusion-in-Decoder reads the question with each passage."""
    turns = sum(len(one.question) + len(one.answer) for one in request.turns)
    passages = sum(len(one.title) + len(one.text) for one in request.passages)
    alone = request.augmentation is Augmentation.FUSION_IN_DECODER
    return turns + passages + len(request.question) * (len(request.passages) if alone else 1)


def _as_reused(answer: Answer) -> Answer:
    """Return the answer for one more equal request, whose prompt costs nothing."""
    return replace(answer, cost=replace(answer.cost, computed_tokens=0, reused_tokens=answer.prompt_tokens))


def _draft_request(request: GenerationRequest, model: LanguageModel) -> GenerationRequest:
    """Return the request for the document to answer from: the model's knowledge, or a summary."""
    augmentation, template = _IN_TWO_STEPS[request.augmentation]
    most = min(DRAFT_TOKENS, model.describe().max_new_tokens)
    return replace(
        request,
        augmentation=augmentation,
        template=template,
        decoding=replace(request.decoding, max_new_tokens=most, stop=()),
        turns=(),  # the prompts of the papers have no place for them
    )


def _with_draft(request: GenerationRequest, draft: _Output) -> GenerationRequest:
    """Return the request with the model's draft as its only passage."""
    written = Passage("draft", "", draft.answer.text)
    return replace(request, augmentation=Augmentation.IN_PROMPT, passages=(written,))


def _as_read(request: GenerationRequest, model: ModelDescription) -> GenerationRequest:
    """Return the request without what the model does not read of a conversation."""
    return replace(
        request,
        turns=request.turns if model.takes_template else (),
        contextual_question=request.contextual_question if model.reads_context else "",
    )


def _without_ids(request: GenerationRequest) -> GenerationRequest:
    """Return the request without ids, so that contexts of the same texts are equal."""
    return replace(
        request, model="", passages=tuple(Passage("", one.title, one.text) for one in request.passages)
    )


def _finished(written: _Output, draft: _Output | None, model: LanguageModel) -> GeneratedAnswer:
    """Return the answer, with the tokens, cuts and cost of its draft added."""
    answer = written.answer
    tokens = 0 if written.reused else answer.completion_tokens
    if draft is not None:
        tokens += 0 if draft.reused else draft.answer.completion_tokens
        answer = replace(
            answer,
            prompt_tokens=answer.prompt_tokens + draft.answer.prompt_tokens,
            dropped_passages=draft.answer.dropped_passages,
            cut_passages=draft.answer.cut_passages,
            cost=_added(draft.answer.cost, answer.cost),
        )
    return GeneratedAnswer(answer, model.describe(), written.reused, tokens)


def _added(draft: Cost, answer: Cost) -> Cost:
    """Return the cost of both steps; the first visible token is the second step's."""
    return Cost(
        queue_s=draft.queue_s + answer.queue_s,
        first_token_s=draft.total_s + answer.first_token_s,
        total_s=draft.total_s + answer.total_s,
        computed_tokens=draft.computed_tokens + answer.computed_tokens,
        reused_tokens=draft.reused_tokens + answer.reused_tokens,
        batch_rows=max(draft.batch_rows, answer.batch_rows),
    )


def _decoding(decoding: Decoding, model: ModelDescription) -> Decoding:
    """Return the decoding with as many beams as the model can search; refuse more that the caller names."""
    if decoding.num_beams > model.max_beams and decoding.beams_named:
        raise InvalidField("decoding.num_beams", f"must be at most {model.max_beams} for {model.name}")
    return replace(decoding, num_beams=min(decoding.num_beams, model.max_beams), beams_named=True)
