"""Write prompts for models whose tokenizer is not here.

Sizes are bytes of UTF-8, of which ``bytes_per_token`` are taken to make a token. Where a server finds a
prompt too long all the same, the caller asks for a smaller one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from evenmesh.wire.errors import InvalidField
from evenmesh_generator.domain import Augmentation, GenerationRequest, Passage, RelevanceRequest
from evenmesh_generator.prompts import TemplateLibrary
from evenmesh_generator.runtime.prompts.choice import (
    CHAT_TEMPLATE,
    FREE_TEMPLATE,
    TEXT_TEMPLATE,
    TemplateChooser,
)
from evenmesh_generator.runtime.prompts.fitting import RANKING_TEMPLATE, Fitted, PromptFitter
from evenmesh_generator.runtime.prompts.special_tokens import SpecialTokens

_CONTROL: Final = re.compile(
    r"<\|[^<>|\s]{1,64}\|>|<\uff5c[^<>\uff5c\s]{1,64}\uff5c>|</?s>|<</?SYS>>|</?think>"
    r"|<(?:start|end)_of_turn>|<(?:bos|eos|pad|unk|mask)>|<extra_id_[0-9]{1,4}>"
    r"|\[/?(?:INST|SYSTEM_PROMPT|TOOL_CALLS|TOOL_RESULTS|AVAILABLE_TOOLS|THINK)\]|\[(?:CLS|SEP|PAD|UNK|MASK)\]"
)
"""Special tokens of the model families that such servers run."""

CONTEXT_TOKENS: Final = 4096
"""What prompt and answer may have together where neither servers nor settings say. Tokens."""

MOST_WRITTEN: Final = 4096
"""Longest answer that the contract allows. Tokens."""

_FRAME: Final = 32
"""Tokens kept for what a chat template adds to one message."""


@dataclass(frozen=True, slots=True)
class PromptOptions:
    """How a model is prompted.

    Attributes:
        name: what errors call the model.
        chat: whether its server puts the prompt into a chat template.
        template: in-prompt template of requests that name none; empty: chosen by ``chat``.
        context_tokens: what prompt and answer may have together. Tokens, [16, 2^31 - 1].
        bytes_per_token: bytes of UTF-8 that are taken to make a token, [0.5, 16].
    """

    name: str
    chat: bool
    template: str
    context_tokens: int
    bytes_per_token: float


class RemotePrompter:
    """Prompts of templates, as text. Used from several threads at once.

    What in a question, passage or turn is a special token of a common model family is broken up, as
    :class:`~evenmesh_generator.runtime.prompts.special_tokens.SpecialTokens` does.

    Args:
        templates: the templates.
        options: how the model is prompted.
    """

    def __init__(self, templates: TemplateLibrary, options: PromptOptions) -> None:
        self._templates = templates
        self._options = options
        self._specials = SpecialTokens(_CONTROL)
        self._chooser = TemplateChooser(
            templates,
            in_prompt=CHAT_TEMPLATE if options.chat else TEXT_TEMPLATE,
            free=FREE_TEMPLATE,
            named=options.template,
        )

    def prompt(self, request: GenerationRequest, most_bytes: int | None = None) -> Fitted[str]:
        """Return what the model reads to answer.

        Args:
            request: the request.
            most_bytes: size of the prompt; None: what is estimated to fit. Bytes.

        Raises:
            InvalidField: the question does not fit, or the template is none for this model.
        """
        request = self._specials.escape_request(request)
        template = self._chooser.of(request)
        most = self._most_bytes(request.decoding.max_new_tokens) if most_bytes is None else most_bytes
        fitter = PromptFitter(template, request.question, most, str, size_of, self._too_long)
        return fitter.fit(request.passages, request.turns)

    def judgement(self, request: RelevanceRequest, passage: Passage, most_bytes: int | None = None) -> str:
        """Return what the model reads to judge one passage; one that does not fit is cut at its end.

        Args:
            request: the request, of any passages.
            passage: the passage.
            most_bytes: size of the prompt; None: what is estimated to fit. Bytes.

        Raises:
            InvalidField: the question does not fit, or the template is none for judging one passage.
        """
        request = self._specials.escape_request(
            RelevanceRequest(request.question, (passage,), template=request.template, turns=request.turns)
        )
        name = request.template or RANKING_TEMPLATE
        template = self._templates.judging(name, turns=bool(request.turns))
        most = self._most_bytes(1) if most_bytes is None else most_bytes
        fitter = PromptFitter(template, request.question, most, str, size_of, self._too_long)
        turns = fitter.turns_that_fit(request.turns, [request.passages])
        return fitter.row_of(request.passages[0], turns)[0]

    def tokens(self, size: int) -> int:
        """Return the tokens that a text of ``size`` bytes is estimated to have, [1, inf)."""
        return max(1, round(size / self._options.bytes_per_token))

    def _most_bytes(self, written: int) -> int:
        frame = _FRAME if self._options.chat else 1
        left = self._options.context_tokens - written - frame
        return max(0, int(left * self._options.bytes_per_token))

    def _too_long(self, size: int, limit: int) -> InvalidField:
        return InvalidField(
            "question",
            f"makes a prompt of about {self.tokens(size)} tokens; {self._options.name} reads at most about "
            f"{self.tokens(limit)}",
        )


def text_augmentations(instruction: bool) -> tuple[Augmentation, ...]:
    """Return what a model that reads text can do; ``instruction``: whether it follows instructions."""
    can = [Augmentation.IN_PROMPT, Augmentation.RETRIEVAL_FREE]
    if instruction:
        can += [Augmentation.PARAMETRIC_KNOWLEDGE, Augmentation.COMPRESSION]
    return tuple(can)


def size_of(text: str) -> int:
    """Return the bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode(errors="replace"))
