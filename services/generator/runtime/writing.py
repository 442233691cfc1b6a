"""One answer while it is written: what was chosen so far, and when it is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from transformers import LogitsProcessorList

from services.generator.domain import Decoding
from services.generator.runtime.beams import BeamSearch, Candidate
from services.generator.runtime.rules import Rules
from services.generator.runtime.sampling import Sampler
from services.generator.runtime.transcript import Transcript


class Writing(Protocol):
    """One request's tokens."""

    tokens: list[int]
    """The newest token of every beam: what the next step reads."""
    parents: list[int] | None
    """The beam each beam goes on from; None where they all go on from themselves."""
    done: bool
    written: int
    """Tokens of the answer, its end included."""
    log_probability: float
    stopped: bool
    """Whether the model ended, rather than ran out of length."""


class SingleWriting:
    """A greedy or sampled answer.

    Args:
        prompt: tokens it is written behind, for the processors.
        emit: gets text as it comes.
    """

    def __init__(
        self,
        decoding: Decoding,
        stream_id: str,
        rules: Rules,
        processors: LogitsProcessorList | None,
        prompt: Sequence[int],
        transcript: Transcript,
        emit: Callable[[str], None],
    ) -> None:
        self.sampler = Sampler(decoding, stream_id) if decoding.temperature > 0 else None
        self.processors = processors
        self._most = decoding.max_new_tokens
        self._rules = rules
        self._transcript = transcript
        self._emit = emit
        self.ids = list(prompt) if processors else []
        self.tokens = [prompt[-1]]
        self.parents: list[int] | None = None
        self.done = False
        self.written = 0
        self.log_probability = 0.0
        self.stopped = False

    def take(self, token: int, gained: float) -> None:
        """The next token, and its log-probability in the model's own distribution."""
        self.tokens = [token]
        self.written += 1
        self.log_probability += gained
        if self.processors is not None:
            self.ids.append(token)
        full = self.written >= self._most
        if token in self._rules.ends:
            # An end that was forced because the length was used up is no end of the model's own.
            self.stopped = not (full and self._rules.forces_end)
            self.done = True
        else:
            self._say(self._transcript.push(token))
            self.done = full
        if self.done:
            self._say(self._transcript.finish())

    def _say(self, text: str) -> None:
        if text:
            self._emit(text)


class BeamWriting:
    """An answer found by beam search; its text comes at the end."""

    def __init__(
        self,
        decoding: Decoding,
        rules: Rules,
        processors: LogitsProcessorList | None,
        prompt: Sequence[int],
        transcript: Transcript,
        emit: Callable[[str], None],
    ) -> None:
        self.search = BeamSearch(
            decoding.num_beams,
            decoding.max_new_tokens,
            rules.ends,
            length_penalty=rules.length_penalty,
            early_stopping=rules.early_stopping,
        )
        self.processors = processors
        self._most = decoding.max_new_tokens
        self._rules = rules
        self._prompt = list(prompt)
        self._transcript = transcript
        self._emit = emit
        self.tokens = [prompt[-1]] * decoding.num_beams
        self.parents: list[int] | None = None
        self.done = False
        self.written = 0
        self.log_probability = 0.0
        self.stopped = False

    @property
    def ids(self) -> list[list[int]]:
        """What every beam has read, for the processors."""
        return [[*self._prompt, *(trail.tokens() if trail else ())] for trail in self.search.trails]

    def take(self, best: Sequence[Candidate]) -> None:
        """The best candidates of a step."""
        onward = self.search.advance(best)
        if onward is not None:
            self.parents, self.tokens = onward
            return
        self.done = True
        found = self.search.best
        ids = found.trail.tokens() if found.trail is not None else []
        self.written = len(ids)
        self.log_probability = found.log_probability
        if ids and ids[-1] in self._rules.ends:
            self.stopped = not (len(ids) == self._most and self._rules.forces_end)
            ids = ids[:-1]
        text = "".join([*map(self._transcript.push, ids), self._transcript.finish()])
        if text:
            self._emit(text)
