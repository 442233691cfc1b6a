"""The state of one answer while it is generated."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from evenmesh_generator.domain import Decoding
from evenmesh_generator.runtime.decoding.beams import BeamSearch, Candidate
from evenmesh_generator.runtime.decoding.rules import Processor, Rules
from evenmesh_generator.runtime.decoding.sampler import Sampler
from evenmesh_generator.runtime.prompts.transcript import Transcript


class _Sequence:
    """The state of one answer.

    Args:
        prompt: tokens it is written after.
        emit: receives text as it comes.
    """

    def __init__(
        self,
        decoding: Decoding,
        rules: Rules,
        processors: Sequence[Processor] | None,
        prompt: Sequence[int],
        transcript: Transcript,
        emit: Callable[[str], None],
    ) -> None:
        self.processors = processors
        self.tokens = [prompt[-1]] * decoding.num_beams
        """The newest token of every beam: what the next step reads."""
        self.parents: list[int] | None = None
        """The beam each beam goes on from; None where they all go on from themselves."""
        self.done = False
        self.written = 0
        """Tokens of the answer, its end included."""
        self.log_probability = 0.0
        self.log_probabilities: list[float] = []
        """Those of each token, where they are known."""
        self.stopped = False
        """Whether the model or a text of ``stop`` ended it, rather than its length."""
        self.broken = False
        """Whether the model gave it scores that are no numbers, so that it has no next token."""
        self._max = decoding.max_new_tokens
        self._rules = rules
        self._transcript = transcript
        self._emit = emit

    def _ends_by_itself(self) -> bool:
        """Return whether an end token after ``written`` tokens is the model's own, not forced by the
        length.
        """
        return not (self.written >= self._max and self._rules.forces_end)

    def _say(self, text: str) -> None:
        if text:
            self._emit(text)


class SingleSequence(_Sequence):
    """A greedy or sampled answer; ``stream_id`` names its random draws among those of one seed."""

    def __init__(
        self,
        decoding: Decoding,
        stream_id: str,
        rules: Rules,
        processors: Sequence[Processor] | None,
        prompt: Sequence[int],
        transcript: Transcript,
        emit: Callable[[str], None],
    ) -> None:
        super().__init__(decoding, rules, processors, prompt, transcript, emit)
        self.sampler = Sampler(decoding, stream_id) if decoding.temperature > 0 else None
        self.ids = list(prompt) if processors else []

    def take(self, token: int, gained: float) -> None:
        """Add the next token; ``gained``: its log-probability in the model's own distribution."""
        if math.isnan(gained):
            self.broken = self.done = True
            return
        self.tokens = [token]
        self.written += 1
        self.log_probability += gained
        self.log_probabilities.append(gained)
        if self.processors is not None:
            self.ids.append(token)
        if token in self._rules.ends:
            self.stopped = self._ends_by_itself()
            self.done = True
        else:
            self._say(self._transcript.push(token))
            self.done = self._transcript.ended or self.written >= self._max
        if self.done:
            self._say(self._transcript.finish())
            self.stopped |= self._transcript.ended


class BeamSequences(_Sequence):
    """An answer found by beam search; its text comes at the end."""

    def __init__(
        self,
        decoding: Decoding,
        rules: Rules,
        processors: Sequence[Processor] | None,
        prompt: Sequence[int],
        transcript: Transcript,
        emit: Callable[[str], None],
    ) -> None:
        super().__init__(decoding, rules, processors, prompt, transcript, emit)
        self.search = BeamSearch(
            decoding.num_beams,
            decoding.max_new_tokens,
            rules.ends,
            length_penalty=rules.length_penalty,
            early_stopping=rules.early_stopping,
        )
        self._prompt = list(prompt)

    @property
    def ids(self) -> list[list[int]]:
        """Return what every beam has read, for the processors."""
        return [[*self._prompt, *(trail.tokens() if trail else ())] for trail in self.search.trails]

    def take(self, best: Sequence[Candidate]) -> None:
        """Add the best candidates of a step."""
        if any(math.isnan(one.score) for one in best):
            self.broken = self.done = True
            return
        onward = self.search.advance(best)
        if onward is not None:
            self.parents, self.tokens = onward
            return
        self.done = True
        found = self.search.best
        ids = found.trail.tokens() if found.trail is not None else []
        self.written = len(ids)
        self.log_probability = found.log_probability
        self.log_probabilities = found.trail.log_probabilities() if found.trail is not None else []
        if ids and ids[-1] in self._rules.ends:
            self.stopped = self._ends_by_itself()
            ids = ids[:-1]
        self._say("".join([*map(self._transcript.push, ids), self._transcript.finish()]))
        self.stopped |= self._transcript.ended
