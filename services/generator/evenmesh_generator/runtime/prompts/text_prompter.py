"""Write prompts of transformers models that fit their input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Protocol

from evenmesh.wire.errors import FailedPrecondition, InvalidField
from evenmesh_generator.domain import Augmentation, GenerationRequest, RelevanceRequest
from evenmesh_generator.prompts import Template, TemplateLibrary
from evenmesh_generator.runtime.networks.protocol import Prompt
from evenmesh_generator.runtime.prompts.choice import (
    CHAT_TEMPLATE,
    FREE_TEMPLATE,
    TEXT_TEMPLATE,
    TemplateChooser,
)
from evenmesh_generator.runtime.prompts.detokenizer import IncrementalDetokenizer
from evenmesh_generator.runtime.prompts.fitting import RANKING_TEMPLATE, PromptFitter
from evenmesh_generator.runtime.prompts.special_tokens import SpecialTokens
from evenmesh_generator.runtime.prompts.transcript import Transcript
from evenmesh_generator.template_sandbox import MOST_CHARACTERS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Tokens that distinguish "True" from "False": after ``prefix``, ``true`` or ``false`` follows."""

    prefix: tuple[int, ...]
    true: int
    false: int


class Prompter(Protocol):
    """Turns requests into what a network reads. Used from several threads at once."""

    @property
    def verdicts(self) -> Verdicts | None:
        """Return the tokens of True and False; None if the model has none."""

    def prompt(self, request: GenerationRequest) -> Prompt:
        """Return what the model reads to answer.

        Raises:
            InvalidField: the question does not fit, or the template is none for this model.
        """

    def transcript(self, request: GenerationRequest, prompt: Prompt) -> Transcript:
        """Return what turns the answer's tokens into text."""

    def judgements(self, request: RelevanceRequest) -> list[Prompt]:
        """Return what the model reads to judge, one prompt per passage.

        Raises:
            FailedPrecondition: the model cannot judge.
            InvalidField: the question does not fit, or the template is none for judging one passage.
        """


class TextPrompter:
    """Prompts of templates, tokenized.

    Passages go into the prompt, or (Fusion-in-Decoder) each makes a separate row with the question. A
    prompt that does not fit loses turns, the oldest first, then whole passages from the end, then the end of
    its only passage; the question is never cut. What in a question, passage or turn would be a special token
    is read as plain text.

    Args:
        name: what errors call the model.
        encodes: whether it is an encoder–decoder.
        start: what a decoder beside an encoder begins with.
        template: of in-prompt augmentation when a request names none; empty: chosen by architecture.
        most_input: tokens it reads; without an encoder, together with those it may write.
    """

    def __init__(
        self,
        name: str,
        tokenizer: PreTrainedTokenizerBase,
        templates: TemplateLibrary,
        *,
        encodes: bool,
        start: int | None,
        template: str,
        most_input: int,
    ) -> None:
        self._name = name
        self._tokenizer = tokenizer
        # A fast tokenizer sets its truncation in place and must not be used by two threads at once.
        self._lock = Lock()
        self._specials = SpecialTokens.of(tokenizer)
        self._templates = templates
        self._encodes = encodes
        self._start = () if start is None or not encodes else (start,)
        self._most_input = most_input
        self.chats = not encodes and bool(tokenizer.chat_template)
        self._chooser = TemplateChooser(
            templates,
            in_prompt=self._default_template(),
            free="question" if encodes else FREE_TEMPLATE,
            named=template,
        )
        self._verdicts = self._find_verdicts()

    @property
    def verdicts(self) -> Verdicts | None:
        """Return the tokens of True and False."""
        return self._verdicts

    def prompt(self, request: GenerationRequest) -> Prompt:
        """Return what the model reads to answer."""
        request = self._specials.escape_request(request)
        template = self._chooser.of(request)
        limit = self._most_input - (0 if self._encodes else request.decoding.max_new_tokens)
        fitter = self._fitter(template, request.question, limit, self._prompt_tokens)
        if request.augmentation is Augmentation.FUSION_IN_DECODER:
            turns = fitter.turns_that_fit(request.turns, [[passage] for passage in request.passages])
            made = [fitter.row_of(passage, turns) for passage in request.passages]
            return Prompt(
                tuple(row for row, _ in made),
                self._start,
                cut_passages=sum(cut for _, cut in made),
                dropped_turns=len(request.turns) - len(turns),
            )
        fitted = fitter.fit(request.passages, request.turns)
        return Prompt(
            (fitted.row,),
            self._start,
            dropped_passages=fitted.dropped_passages,
            cut_passages=fitted.cut_passages,
            dropped_turns=fitted.dropped_turns,
        )

    def transcript(self, request: GenerationRequest, prompt: Prompt) -> Transcript:
        """Return what turns the answer's tokens into text."""
        return IncrementalDetokenizer(self._text)

    def judgements(self, request: RelevanceRequest) -> list[Prompt]:
        """Return what the model reads to judge; a passage that does not fit is cut at its end."""
        verdicts = self._verdicts
        if verdicts is None:
            raise FailedPrecondition(
                "NO_RELEVANCE", f"the tokenizer of {self._name} does not distinguish True from False"
            )
        request = self._specials.escape_request(request)
        name = request.template or RANKING_TEMPLATE
        template = self._templates.judging(name, turns=bool(request.turns))
        behind = () if self._encodes else verdicts.prefix
        limit = self._most_input - len(behind) - (0 if self._encodes else 1)
        fitter = self._fitter(template, request.question, limit, self.tokens)
        turns = fitter.turns_that_fit(request.turns, [[passage] for passage in request.passages])
        start = (*self._start, *verdicts.prefix) if self._encodes else ()
        texts = [template.render(request.question, [passage], turns) for passage in request.passages]
        rows = self.many_tokens(texts)
        return [
            Prompt(((*(row if len(row) <= limit else fitter.row_of(passage, turns)[0]), *behind),), start)
            for passage, row in zip(request.passages, rows, strict=True)
        ]

    def tokens(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a text, with the special ones."""
        return self.many_tokens([text])[0]

    def many_tokens(self, texts: list[str]) -> list[tuple[int, ...]]:
        """Return the tokens of texts, with the special ones."""
        if not texts:
            return []
        # The limit is ours to keep, by whole passages; the tokenizer's own would cut the end of the prompt.
        with self._lock:
            rows = self._tokenizer(texts, truncation=False, verbose=False).input_ids
        return [tuple(row) for row in rows]

    def too_long(self, length: int, limit: int) -> InvalidField:
        """Return the error of a question that does not fit."""
        return InvalidField(
            "question", f"makes a prompt of {length} tokens; {self._name} reads at most {limit}"
        )

    def _fitter(
        self, template: Template, question: str, limit: int, make: Callable[[str], tuple[int, ...]]
    ) -> PromptFitter[tuple[int, ...]]:
        return PromptFitter(template, question, limit, make, len, self.too_long)

    def _prompt_tokens(self, text: str) -> tuple[int, ...]:
        if not self.chats:
            return self.tokens(text)
        chat = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
        )
        if len(chat) > MOST_CHARACTERS:
            raise InvalidField("question", f"makes a prompt of more than {MOST_CHARACTERS} characters")
        with self._lock:
            return tuple(self._tokenizer(chat, add_special_tokens=False, verbose=False).input_ids)

    def _text(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def _default_template(self) -> str:
        if self._encodes:
            return "ra-x"
        return CHAT_TEMPLATE if self.chats else TEXT_TEMPLATE

    def _find_verdicts(self) -> Verdicts | None:
        if self._encodes:
            true, false = (
                tuple(self._tokenizer(text_target=word, verbose=False).input_ids)
                for word in ("True", "False")
            )
        else:
            # As the word stands behind the prompt: with the space, and whatever the tokenizer makes of it.
            prompt, true, false = self.many_tokens(["Assistant:", "Assistant: True", "Assistant: False"])
            shared = _common_prefix(_common_prefix(prompt, true), false)
            true, false = true[len(shared) :], false[len(shared) :]
        prefix = _common_prefix(true, false)
        if len(prefix) >= min(len(true), len(false)):
            return None
        pair = Verdicts(prefix, true[len(prefix)], false[len(prefix)])
        unknown = self._tokenizer.unk_token_id
        return None if unknown is not None and unknown in (pair.true, pair.false) else pair


def _common_prefix(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """Return the tokens with which both begin."""
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return one[:length]
