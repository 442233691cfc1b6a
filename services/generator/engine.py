"""What the generator does with models: chooses one, checks what it can do, writes, judges."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final

from meshkit.errors import FailedPrecondition, InvalidField, MeshError, NotFound
from services.generator.domain import (
    Answer,
    Augmentation,
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
    """An answer and the model that wrote it."""

    answer: Answer
    model: ModelDescription


@dataclass(frozen=True, slots=True)
class Judged:
    """P(True) per passage, each in [0, 1], and the model that judged."""

    probabilities: list[float]
    model: ModelDescription


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
        draft: Answer | None = None
        if request.augmentation in _IN_TWO_STEPS:
            (outcome,) = await model.generate_batch([_draft_request(request, model)], cancel)
            if isinstance(outcome, MeshError):
                raise outcome
            request, draft = _with_draft(request, outcome), outcome
        async with aclosing(model.generate_stream(request, cancel)) as parts:
            async for part in parts:
                yield part if isinstance(part, str) else _finished(part, draft, model)

    async def batch(
        self, requests: Sequence[GenerationRequest], cancel: Cancellation
    ) -> list[Finished | MeshError]:
        """One answer or one error per request, in order; what is asked twice is computed once."""
        plans: list[_Plan | MeshError] = []
        for request in requests:
            try:
                model, resolved = self._resolve(request)
            except MeshError as error:
                plans.append(error)
            else:
                plans.append(_Plan(model.describe().name, _without_ids(resolved)))
        wanted = dict.fromkeys(plan for plan in plans if isinstance(plan, _Plan))
        outcomes: dict[_Plan, Finished | MeshError] = {}
        for name, model in self._models.items():
            mine = [plan for plan in wanted if plan.model == name]
            if mine:
                answers = await _answer_all(model, [plan.request for plan in mine], cancel)
                outcomes |= zip(mine, answers, strict=True)
        return [plan if isinstance(plan, MeshError) else outcomes[plan] for plan in plans]

    async def relevance(self, request: RelevanceRequest, model: str, cancel: Cancellation) -> Judged:
        """P(True) of each passage (Yu et al., RankRAG, appendix D.1).

        Raises:
            NotFound: no model or no template of that name.
            InvalidField: the template is of another kind.
            FailedPrecondition: the model cannot judge relevance.
            MeshError: the model's own errors.
        """
        judge = self._model(model)
        description = judge.describe()
        if not description.scores_relevance:
            raise FailedPrecondition("NO_RELEVANCE", f"{description.name} cannot judge relevance")
        return Judged(await judge.score_relevance(request, cancel), description)

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
        if request.template:
            last = Augmentation.IN_PROMPT if augmentation in _IN_TWO_STEPS else augmentation
            self._templates.suiting(request.template, last)
        most = description.max_new_tokens
        if request.decoding.max_new_tokens > most:
            raise InvalidField("decoding.max_new_tokens", f"must be at most {most} for {description.name}")
        return model, replace(request, augmentation=augmentation)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A request and the model that runs it; equal plans have equal answers."""

    model: str
    request: GenerationRequest


async def _answer_all(
    model: LanguageModel, requests: Sequence[GenerationRequest], cancel: Cancellation
) -> list[Finished | MeshError]:
    """Answers of one model; what it answers from is drafted first where that is asked for."""
    own = [at for at, one in enumerate(requests) if one.augmentation in _IN_TWO_STEPS]
    failed: dict[int, MeshError] = {}
    read: dict[int, Answer] = {}
    final = dict(enumerate(requests))
    if own:
        drafts = await model.generate_batch([_draft_request(requests[at], model) for at in own], cancel)
        for at, draft in zip(own, drafts, strict=True):
            if isinstance(draft, MeshError):
                failed[at] = draft
                del final[at]
            else:
                final[at] = _with_draft(requests[at], draft)
                read[at] = draft
    answers = await model.generate_batch(list(final.values()), cancel) if final else []
    outcomes: dict[int, Finished | MeshError] = dict(failed)
    for at, answer in zip(final, answers, strict=True):
        outcomes[at] = answer if isinstance(answer, MeshError) else _finished(answer, read.get(at), model)
    return [outcomes[at] for at in range(len(requests))]


def _draft_request(request: GenerationRequest, model: LanguageModel) -> GenerationRequest:
    """Asks the model for the document it will answer from: its own knowledge, or a summary."""
    augmentation, template = _IN_TWO_STEPS[request.augmentation]
    most = min(DRAFT_TOKENS, model.describe().max_new_tokens)
    return replace(
        request,
        augmentation=augmentation,
        template=template,
        decoding=replace(request.decoding, max_new_tokens=most),
    )


def _with_draft(request: GenerationRequest, draft: Answer) -> GenerationRequest:
    """Asks the question with what the model wrote as the only passage."""
    written = Passage("draft", "", draft.text)
    return replace(request, augmentation=Augmentation.IN_PROMPT, passages=(written,))


def _without_ids(request: GenerationRequest) -> GenerationRequest:
    """The request as the model sees it: contexts of the same texts are the same."""
    return replace(request, model="", passages=tuple(replace(one, id="") for one in request.passages))


def _finished(answer: Answer, draft: Answer | None, model: LanguageModel) -> Finished:
    """The answer with what was read, and what was left out, while its document was drafted."""
    if draft is not None:
        answer = replace(
            answer,
            prompt_tokens=answer.prompt_tokens + draft.prompt_tokens,
            dropped_passages=draft.dropped_passages,
        )
    return Finished(answer, model.describe())
