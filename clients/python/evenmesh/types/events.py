"""Typed events of an ask, and :class:`AskResult`, which gathers them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from evenmesh.types.passage import Passage
from evenmesh.types.policy import Policy
from evenmesh.types.reports import ExposureShare, RunReport


@dataclass(frozen=True, slots=True)
class Retrieved:
    """The candidates are retrieved.

    Attributes:
        passages: the pool, best first.
        scores: the retriever's score of each passage, in the retriever's unit.
        retriever: the retriever that answered.
        index_version: version of the index; empty for passages sent with the question.
        collection: the collection that was searched; empty for passages of the question, of the web or of the
            sources of an expression.
    """

    passages: tuple[Passage, ...]
    scores: tuple[float, ...]
    retriever: str
    index_version: str
    collection: str = ""


@dataclass(frozen=True, slots=True)
class Ranked:
    """The contexts of the generator are ranked.

    Attributes:
        contexts: one per sample; each the indices of its passages in :attr:`Retrieved.passages`, best first.
        log_probabilities: of each sampled ranking, in nats; empty for a deterministic ranking.
        reranker: the reranker that ordered them; ``none`` if none did.
        model_version: version of the reranker's model.
        member: the expression it is of, in an ensemble; empty otherwise.
        fusion: weight of the retriever's scores beside the reranker's; 0 if they do not count.
        policy: how rankings were drawn to reach a target; None without one.
    """

    contexts: tuple[tuple[int, ...], ...]
    log_probabilities: tuple[float, ...]
    reranker: str
    model_version: str
    member: str = ""
    fusion: float = 0.0
    policy: Policy | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of the first answer: text to append."""

    text: str


@dataclass(frozen=True, slots=True)
class Citation:
    """A passage that supports an answer.

    Attributes:
        passage_id: the passage.
        provider: its provider; empty if unknown.
        rank: its place in the context, from 1.
        start: where the answer stands in the passage's text, first character; None if only the title has it.
        end: one past the last character; None if only the title has it.
    """

    passage_id: str
    provider: str
    rank: int
    start: int | None
    end: int | None


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of an answer.

    Attributes:
        queue_ms: waited until the model took the request up. Milliseconds.
        first_token_ms: from the request's arrival at the model to its first token. Milliseconds.
        total_ms: from the request's arrival at the model to its last token. Milliseconds.
        computed_tokens: tokens of the prompt that were computed.
        reused_tokens: tokens of the prompt whose encodings were cached.
        batch_rows: most rows (beams counted) computed together while it was written.
    """

    queue_ms: float
    first_token_ms: float
    total_ms: float
    computed_tokens: int
    reused_tokens: int
    batch_rows: int


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer.

    Attributes:
        text: the answer; the first one equals the concatenation of the deltas.
        samples: indices of the contexts it was written from (equal contexts are answered once).
        citations: passages of the context that contain the answer, in context order.
        finish_reason: ``stop`` or ``length``.
        prompt_tokens: tokens read.
        completion_tokens: tokens written.
        log_probability: of the written tokens, in nats.
        model: name of the model that answered.
        model_version: its version.
        engine: engine that ran it: ``transformers``, ``pointer``, ``ctranslate2``, ``triton`` or ``openai``.
        member: the expression that led to it, in an ensemble; empty otherwise.
        dropped_passages: passages that did not fit and were left out, last ones first.
        cut_passages: passages that were shown but cut at their end.
        dropped_turns: earlier turns of a conversation that were left out, oldest first: they did not fit, or
            the model's default template does not use turns.
        cut_question: whether the model read a part of the question: the sentences that end with a question
            mark, and a few words of the others.
        cost: what it cost.
        confidence: calibrated probability that it is right, the span or the abstention, in [0, 1]; None of
            models that have none.
    """

    text: str
    samples: tuple[int, ...]
    citations: tuple[Citation, ...]
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    log_probability: float
    model: str
    model_version: str
    engine: str
    dropped_passages: int
    cut_passages: int
    dropped_turns: int
    cost: Cost
    member: str = ""
    confidence: float | None = None
    cut_question: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """Why one context has no answer.

    Attributes:
        samples: indices of the contexts it concerns.
        code: canonical gRPC code by name, such as ``UNAVAILABLE``.
        reason: machine-readable reason.
        message: one line for a person.
        field: the field at fault; empty for none.
        member: the expression it concerns, in an ensemble; empty otherwise.
    """

    samples: tuple[int, ...]
    code: str
    reason: str
    message: str
    field: str
    member: str = ""


@dataclass(frozen=True, slots=True)
class Vote:
    """The running vote of an ensemble.

    Attributes:
        answer: the one that leads; empty while none does.
        num_answers: answers that are in.
        num_missing: answers that are not.
        may_change: whether those could still change the winner.
        member: the expression that led to the answer.
        missing: expressions without an answer: waited for, or in the final vote too late.
        final: whether the ask ends with it.
    """

    answer: str
    num_answers: int
    num_missing: int
    may_change: bool
    member: str = ""
    missing: tuple[str, ...] = ()
    final: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """Exposure of this ask, measured on what the generator was given.

    Attributes:
        exposure: expected exposure per retrieved passage, 0 to 1.
        ee_d_norm: EE-D over its bound, 0 (equal exposure) to 1 (always the same passages).
        ee_r_norm: EE-R over its bound; None without labels.
        expected_utility: 0 to 1; None without references.
        providers: exposure per provider, most exposed first.
        run: the run's report so far, if asked for and the evaluator answered.
    """

    exposure: tuple[float, ...]
    ee_d_norm: float
    ee_r_norm: float | None
    expected_utility: float | None
    providers: tuple[ExposureShare, ...]
    run: RunReport | None


@dataclass(frozen=True, slots=True)
class Degraded:
    """A stage that failed or exceeded its budget, and its fallback.

    Attributes:
        stage: ``retrieve``, ``rerank``, ``generate`` or ``observe``.
        action: the fallback, such as ``retriever_order``.
        reason: machine-readable, such as ``UPSTREAM_UNAVAILABLE``.
        message: one line for a person.
    """

    stage: str
    action: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Done:
    """The ask is over.

    Attributes:
        ask_id: id of this ask, and of its observation.
        run_id: run its observation is filed under.
        stage_ms: milliseconds by stage name, in the order they ran.
        total_ms: whole time in milliseconds.
        seed: seed that was drawn for rankings and words, where the ask gave none; None if it drew nothing, or
            gave its own.
    """

    ask_id: str
    run_id: str
    stage_ms: Mapping[str, float]
    total_ms: float
    seed: int | None = None


Event = Retrieved | Ranked | Delta | Answer | Failed | Vote | Report | Degraded | Done
"""One event of an ask; match on its type."""


@dataclass(frozen=True, slots=True)
class AskResult:
    """The result of an ask.

    Attributes:
        question: the question.
        answers: one per distinct context, the first one first.
        failures: contexts without an answer.
        retrieved: the candidates; None if retrieval brought none.
        ranked: the contexts; None if there were none.
        report: exposure of this ask; None if it could not be measured.
        degradations: stages that degraded.
        vote: how the answers of an ensemble voted at last; None without one.
        done: ids and times; None only if the stream ended early.
    """

    question: str
    answers: tuple[Answer, ...] = ()
    failures: tuple[Failed, ...] = ()
    retrieved: Retrieved | None = None
    ranked: Ranked | None = None
    report: Report | None = None
    degradations: tuple[Degraded, ...] = ()
    done: Done | None = None
    vote: Vote | None = None

    @classmethod
    def of(cls, question: str, events: Iterable[Event]) -> "AskResult":
        """Return the result that the events of one ask make."""
        kept = [event for event in events if not isinstance(event, Delta)]
        return cls(
            question=question,
            answers=tuple(event for event in kept if isinstance(event, Answer)),
            failures=tuple(event for event in kept if isinstance(event, Failed)),
            retrieved=_together([event for event in kept if isinstance(event, Retrieved)]),
            ranked=_last(kept, Ranked),
            report=_last(kept, Report),
            degradations=tuple(event for event in kept if isinstance(event, Degraded)),
            done=_last(kept, Done),
            vote=_last(kept, Vote),
        )

    @property
    def text(self) -> str:
        """Return the text of the vote's winner, or else of the first answer; empty without an answer."""
        if self.vote is not None:
            return self.vote.answer
        return self.answers[0].text if self.answers else ""

    @property
    def citations(self) -> tuple[Citation, ...]:
        """Return the citations of that answer."""
        mine = self.answers
        if self.vote is not None:
            mine = tuple(one for one in self.answers if one.member == self.vote.member)
        return mine[0].citations if mine else ()

    @property
    def providers(self) -> tuple[ExposureShare, ...]:
        """Return the exposure of each provider, most exposed first; empty without a report."""
        return self.report.providers if self.report is not None else ()

    def samples_by_answer(self) -> dict[str, int]:
        """Return the number of samples by answer, most frequent first, then in the order of arrival."""
        counts: dict[str, int] = {}
        for answer in self.answers:
            counts[answer.text] = counts.get(answer.text, 0) + max(1, len(answer.samples))
        return dict(sorted(counts.items(), key=lambda item: -item[1]))


_E = TypeVar("_E", Ranked, Report, Done, Vote)


def _last(events: Iterable[Event], kind: type[_E]) -> _E | None:
    found: _E | None = None
    for event in events:
        if isinstance(event, kind):
            found = event
    return found


def _together(found: list[Retrieved]) -> Retrieved | None:
    """Return one pool of all that was retrieved; each member of an ensemble adds to it."""
    if len(found) < 2:
        return found[0] if found else None
    return Retrieved(
        passages=tuple(passage for one in found for passage in one.passages),
        scores=tuple(score for one in found for score in one.scores),
        retriever=", ".join(dict.fromkeys(one.retriever for one in found)),
        index_version=", ".join(dict.fromkeys(one.index_version for one in found if one.index_version)),
    )
