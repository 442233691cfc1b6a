"""Write prompts of the pointer model: pairs of the question and passages."""

from __future__ import annotations

from collections.abc import Sequence

from evenmesh.wire.errors import InvalidField
from evenmesh_core.asking import asking
from evenmesh_generator.domain import Augmentation, GenerationRequest, Passage, RelevanceRequest
from evenmesh_generator.pointer.settings import PointerSettings
from evenmesh_generator.pointer.spans import SpanTranscript
from evenmesh_generator.pointer.tokenization import (
    MAX_QUESTION,
    Block,
    Pair,
    PairTokenizer,
    Text,
    as_read,
    in_one_text,
    pair,
    pieces,
    room,
)
from evenmesh_generator.prompts import most_passages
from evenmesh_generator.runtime.networks.protocol import Prompt
from evenmesh_generator.runtime.prompts.text_prompter import Verdicts
from evenmesh_generator.runtime.prompts.transcript import Transcript
from evenmesh_kit.compute.tenant_cache import TenantCache

_TEXT_BYTES = 64 * 2**20
"""Room for tokens of passages: rankings of one query show the same ones again and again. Bytes."""

_TOKEN_BYTES = 128
"""What a token of a passage takes with its place in the text, about. Bytes."""


class PairPrompter:
    """Each passage is read with the question, in several pieces where the pair is too long.

    Judgements read the first piece. In-prompt, all passages make one pair with the question, as far as they
    fit: the last are left out first.

    Args:
        name: what errors call the model.
        limit: longest pair of a question and one passage. Tokens.
        rows: most pairs of an answer, unless it has more passages: the best passages are read on first.
    """

    def __init__(
        self, name: str, tokenizer: PairTokenizer, settings: PointerSettings, *, limit: int, rows: int = 1
    ) -> None:
        self._name = name
        self._rows = rows
        self._confidence = settings.confidence
        self._tokenizer = tokenizer
        self._limit = limit
        self._most = settings.max_position_embeddings
        self._answer = settings.answer_token_id
        self._relevance = settings.relevance_token_id
        self._verdicts = Verdicts((), settings.true_token_id, settings.false_token_id)
        self._texts: TenantCache[Text] = TenantCache(_TEXT_BYTES, share=1.0)

    @property
    def verdicts(self) -> Verdicts | None:
        """Return the tokens of True and False."""
        return self._verdicts

    def prompt(self, request: GenerationRequest) -> Prompt:
        """Return one row per passage, one for all passages (in-prompt), or the question alone."""
        question, cut = self._question(request)
        if request.augmentation is Augmentation.IN_PROMPT and request.passages:
            return self._together(question, request, cut_question=cut)
        texts = [self._text(passage.text, request.tenant) for passage in request.passages]
        made: list[Pair] = []
        shown = []
        spare = max(0, self._rows - len(texts))
        for passage, text in zip(request.passages, texts, strict=True):
            title = self._tokenizer.title_ids(passage.title)
            space = room(question, title, self._limit)
            begins = pieces(text, space, 1 + spare)
            spare -= len(begins) - 1
            made += [pair(question, title, text.ids, limit=self._limit, start=begin) for begin in begins]
            shown.append(text.whole(min(len(text.ids), begins[-1] + space)))
        if not made:
            made = [pair(question, (), (), limit=self._limit)]
        return Prompt(
            tuple(one.ids for one in made),
            (self._answer,),
            tuple(one.boundary for one in made),
            cut_passages=sum(len(text.ids) > most for text, most in zip(texts, shown, strict=True)),
            dropped_turns=len(request.turns),
            cut_question=cut,
            spans=_blocks(texts, shown),
            shown=tuple(shown),
        )

    def transcript(self, request: GenerationRequest, prompt: Prompt) -> Transcript:
        """Return what turns the answer's tokens into the passages' own letters."""
        passages = [passage.text for passage in request.passages[: len(prompt.shown)]]
        texts = [self._text(text, request.tenant) for text in passages]
        return SpanTranscript(passages, texts, prompt.shown, self._tokenizer, self._confidence)

    def judgements(self, request: RelevanceRequest) -> list[Prompt]:
        """Return one pair per passage."""
        self._check_template(request.template)
        question = self._tokenizer.question(request.question)
        made = [self._pair(question, passage, request.tenant) for passage in request.passages]
        return [Prompt((one.ids,), (self._relevance,), (one.boundary,)) for one in made]

    def _question(self, request: GenerationRequest) -> tuple[tuple[int, ...], bool]:
        """Return what is read of the question, and whether that is less than all of it."""
        self._check_template(request.template)
        ids = self._tokenizer.ids(request.question)
        if len(ids) > MAX_QUESTION:
            asked = self._tokenizer.ids(asking(request.question))
            if not 0 < len(asked) <= MAX_QUESTION:
                has = f"{len(asked)} tokens in" if asked else f"{len(ids)} tokens and no"
                raise InvalidField(
                    "question",
                    f"has {has} sentences that end with a question mark; "
                    f"{self._name} reads at most {MAX_QUESTION}",
                )
        question = self._tokenizer.question(request.question)
        return self._tokenizer.question(request.contextual_question) or question, question != ids

    def _check_template(self, template: str) -> None:
        if template:
            raise InvalidField(
                "template", f"{self._name} reads passages in a form of its own and takes no template"
            )

    def _together(
        self, question: tuple[int, ...], request: GenerationRequest, *, cut_question: bool
    ) -> Prompt:
        space = room(question, (), self._most)

        def tokens(passages: Sequence[Passage]) -> tuple[int, ...]:
            return self._tokenizer.ids(in_one_text([(one.title, as_read(one.text)) for one in passages]))

        kept = max(1, most_passages(request.passages, lambda shown: len(tokens(shown)) <= space))
        ids = tokens(request.passages[:kept])
        made = pair(question, (), ids, limit=self._most)
        texts = [self._text(one.text, request.tenant) for one in request.passages[:kept]]
        shown = self._in_one_row(request.passages[:kept], texts, space)
        return Prompt(
            (made.ids,),
            (self._answer,),
            (made.boundary,),
            dropped_passages=len(request.passages) - kept,
            cut_passages=int(len(ids) > space),
            dropped_turns=len(request.turns),
            cut_question=cut_question,
            spans=_blocks(texts, shown),
            shown=shown,
        )

    def _in_one_row(self, passages: Sequence[Passage], texts: Sequence[Text], space: int) -> tuple[int, ...]:
        """Return how many tokens of each passage's text are in a row of all of them; its end is cut."""
        found = []
        left = space
        for place, (passage, text) in enumerate(zip(passages, texts, strict=True), start=1):
            before = in_one_text([(passage.title, "")]).replace("context 1:", f"context {place}:", 1)
            left -= len(self._tokenizer.ids(before))
            fits = min(len(text.ids), max(0, left))
            found.append(text.whole(fits))
            left -= fits
        return tuple(found)

    def _text(self, text: str, tenant: str) -> Text:
        """Return the tokens of a passage, kept for its tenant."""
        found = self._texts.get(tenant, text)
        if found is None:
            found = self._tokenizer.text(text)
            self._texts.put(tenant, text, found, len(text) + _TOKEN_BYTES * len(found.ids))
        return found

    def _pair(self, question: tuple[int, ...], passage: Passage, tenant: str) -> Pair:
        title = self._tokenizer.title_ids(passage.title)
        return pair(question, title, self._text(passage.text, tenant).ids, limit=self._limit)


def _blocks(texts: Sequence[Text], shown: Sequence[int]) -> tuple[Block, ...]:
    """Return the tokens that an answer may be copied from, block by block."""
    return tuple(block for text, most in zip(texts, shown, strict=True) for block in text.blocks(most))
