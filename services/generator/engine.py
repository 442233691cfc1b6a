"""What the generator does with models: chooses one, checks what it can do, writes, judges."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from meshkit.errors import FailedPrecondition, InvalidField, MeshError, NotFound
from services.generator.domain import (
    Answer,
    Augmentation,
    GenerationRequest,
    ModelDescription,
    Normalization,
    Passage,
)
from services.generator.ports import Cancellation, LanguageModel
from services.generator.prompts import TemplateLibrary

BACKGROUND_TEMPLATE = "eor-parametric-knowledge"
"""The prompt by which a model writes its own background document (ensemble of retrievers, appendix C.2)."""

BACKGROUND_TOKENS = 256
"""Longest background document. Tokens."""


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
        read = 0
        if request.augmentation is Augmentation.PARAMETRIC_KNOWLEDGE:
            (background,) = await model.generate_batch([_background_request(request, model)], cancel)
            if isinstance(background, MeshError):
                raise background
            request, read = _with_background(request, background), background.prompt_tokens
        async with aclosing(model.generate_stream(request, cancel)) as parts:
            async for part in parts:
                yield part if isinstance(part, str) else _finished(part, read, model)

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

    async def relevance(
        self,
        question: str,
        passages: Sequence[Passage],
        model: str,
        normalization: Normalization,
        cancel: Cancellation,
    ) -> Judged:
        """P(True) of each passage (Yu et al., RankRAG, appendix D.1).

        Raises:
            NotFound: no model of that name.
            FailedPrecondition: the model cannot judge relevance.
            MeshError: the model's own errors.
        """
        judge = self._model(model)
        description = judge.describe()
        if not description.scores_relevance:
            raise FailedPrecondition("NO_RELEVANCE", f"{description.name} cannot judge relevance")
        return Judged(await judge.score_relevance(question, passages, normalization, cancel), description)

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
        takes_passages = augmentation in (Augmentation.IN_PROMPT, Augmentation.FUSION_IN_DECODER)
        if takes_passages != bool(request.passages):
            need = "needs at least one passage" if takes_passages else "takes no passages"
            raise InvalidField("passages", f"{augmentation.value} {need}")
        if request.template:
            last = (
                Augmentation.IN_PROMPT if augmentation is Augmentation.PARAMETRIC_KNOWLEDGE else augmentation
            )
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
    """Answers of one model, background documents written first where they are asked for."""
    own = [at for at, one in enumerate(requests) if one.augmentation is Augmentation.PARAMETRIC_KNOWLEDGE]
    failed: dict[int, MeshError] = {}
    read: dict[int, int] = {}
    final = dict(enumerate(requests))
    if own:
        backgrounds = await model.generate_batch(
            [_background_request(requests[at], model) for at in own], cancel
        )
        for at, background in zip(own, backgrounds, strict=True):
            if isinstance(background, MeshError):
                failed[at] = background
                del final[at]
            else:
                final[at] = _with_background(requests[at], background)
                read[at] = background.prompt_tokens
    answers = await model.generate_batch(list(final.values()), cancel) if final else []
    outcomes: dict[int, Finished | MeshError] = dict(failed)
    for at, answer in zip(final, answers, strict=True):
        outcomes[at] = answer if isinstance(answer, MeshError) else _finished(answer, read.get(at, 0), model)
    return [outcomes[at] for at in range(len(requests))]


def _background_request(request: GenerationRequest, model: LanguageModel) -> GenerationRequest:
    """Asks the model for a background document of its own."""
    most = min(BACKGROUND_TOKENS, model.describe().max_new_tokens)
    return replace(
        request,
        augmentation=Augmentation.RETRIEVAL_FREE,
        template=BACKGROUND_TEMPLATE,
        decoding=replace(request.decoding, max_new_tokens=most),
    )


def _with_background(request: GenerationRequest, background: Answer) -> GenerationRequest:
    """Asks the question with the model's own document as the only passage."""
    own = Passage("background", "", background.text)
    return replace(request, augmentation=Augmentation.IN_PROMPT, passages=(own,))


def _without_ids(request: GenerationRequest) -> GenerationRequest:
    """The request as the model sees it: contexts of the same texts are the same."""
    return replace(request, model="", passages=tuple(replace(one, id="") for one in request.passages))


def _finished(answer: Answer, read_before: int, model: LanguageModel) -> Finished:
    return Finished(replace(answer, prompt_tokens=answer.prompt_tokens + read_before), model.describe())
