"""Show results: an ask as it happens, exposure reports, run reports."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from rich.status import Status
from rich.text import Text

from evenmesh.commands.screen import Screen, clean
from evenmesh.types.events import (
    Answer,
    AskResult,
    Citation,
    Degraded,
    Delta,
    Event,
    Failed,
    Ranked,
    Report,
    Retrieved,
    Vote,
)
from evenmesh.types.policy import GroupShare, Policy
from evenmesh.types.reports import Configuration, Estimate, ExposureShare, RunReport

MAX_PROVIDERS: Final = 15
NOBODY: Final = "(unknown)"
EMPTY: Final = "(empty)"

_MOST_OFFSETS: Final = 5
"""Most providers of which the change of their scores is shown."""


class AnswerLine:
    """The line of an answer, as it is written."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self.begun = False

    def write(self, text: str) -> None:
        """Add text to the line."""
        self.begun = True
        self._screen.out.print(Text(clean(text), style="bold"), end="", soft_wrap=True)

    def end(self) -> None:
        """End the line, if it was begun."""
        if self.begun:
            self._screen.line()
            self.begun = False


class AskView:
    """Shows one ask: the answer as it is written, then what supports it and who was shown.

    Args:
        screen: where.
        samples: rankings that were requested; None for a deterministic one.
        alpha: fairness dial; None if not given.
    """

    def __init__(self, screen: Screen, *, samples: int | None = None, alpha: float | None = None) -> None:
        self._screen = screen
        self._samples = samples
        self._alpha = alpha
        self._events: list[Event] = []
        self._status: Status | None = None
        self._line = AnswerLine(screen)

    def __enter__(self) -> "AskView":
        if self._screen.fancy and self._screen.err.is_terminal:
            self._status = self._screen.err.status("searching")
            self._status.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._quiet()
        self._line.end()

    def show(self, event: Event) -> None:
        """Show an event, if it can be shown before the end."""
        self._events.append(event)
        match event:
            case Retrieved(passages=passages, retriever=retriever):
                self._now(f"{retriever} found {len(passages)} passages; ranking")
            case Ranked(contexts=contexts):
                self._now("writing" if len(contexts) < 2 else f"writing from {len(contexts)} rankings")
            case Delta(text=text):
                self._write(text)
            case Answer(member="", text=text) if not self._line.begun and self._first_answer():
                self._write(text)
            case Failed() if self._line.begun:
                self._line.end()  # that answer broke off: the next one is shown, whose citations follow
            case Vote() if event.final:
                self._write(event.answer)
            case Vote():
                left = f", {event.num_missing} to come" if event.num_missing else ""
                self._now(f"{event.num_answers} answers{left}; {event.member} leads: {event.answer}")
            case _:
                pass

    def finish(self, question: str) -> AskResult:
        """Show the rest and return the whole result."""
        self._quiet()
        self._line.end()
        result = AskResult.of(question, self._events)
        show_result(self._screen, result, samples=self._samples, alpha=self._alpha)
        return result

    def _first_answer(self) -> bool:
        return sum(isinstance(event, Answer) for event in self._events) == 1

    def _now(self, what: str) -> None:
        if self._status is not None:
            self._status.update(clean(what))

    def _write(self, text: str) -> None:
        self._quiet()
        self._line.write(text)

    def _quiet(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None


def show_result(
    screen: Screen, result: AskResult, *, samples: int | None = None, alpha: float | None = None
) -> None:
    """Show all of a result but the answer itself."""
    if not result.answers:
        screen.line("No answer.", style="bold yellow")
    elif not result.text.strip():
        screen.line("The answer is empty: the model found none in its passages.", style="yellow")
    show_citations(screen, result.citations, result.retrieved)
    if result.vote is None and result.answers:
        show_confidence(screen, result.answers[0])
    if result.vote is not None:
        show_vote(screen, result)
    counts = result.samples_by_answer()
    total = sum(counts.values())
    if total > 1 and result.vote is None:
        screen.line()
        table = screen.table("samples", "answer", right=("samples",), title=f"Answers of {total} samples")
        for text, count in counts.items():
            table.add_row(str(count), Text(clean(text) or EMPTY))
        screen.out.print(table)
    if result.report is not None:
        screen.line()
        policy = None if result.ranked is None else result.ranked.policy
        show_exposure(
            screen, result.report, heading=_heading(samples, alpha, policy), single=samples in (None, 1)
        )
        if policy is not None:
            show_policy(screen, policy)
    for line in (*left_out(result.answers), *_failures(result.failures)):
        _warn(screen, line)
    for degraded in result.degradations:
        _warn(screen, _degradation(degraded))
    if result.done is not None:
        screen.line()
        times = " · ".join(f"{stage} {_ms(ms)}" for stage, ms in result.done.stage_ms.items())
        whole = f"total {_ms(result.done.total_ms)}"
        screen.line(f"{times} · {whole}" if times else whole, style="dim")
        named = f"run {result.done.run_id} · ask {result.done.ask_id}"
        drawn = "" if result.done.seed is None else f" · seed {result.done.seed}"
        screen.line(named + drawn, style="dim")


def show_confidence(screen: Screen, answer: Answer) -> None:
    """Show how probably an answer is right, where its model says so."""
    if answer.confidence is not None:
        screen.line(f"  right with probability {answer.confidence:.0%}", style="dim")


def show_citations(screen: Screen, citations: Sequence[Citation], retrieved: Retrieved | None) -> None:
    """List the passages that support an answer."""
    if not citations:
        return
    passages = {passage.id: passage for passage in retrieved.passages} if retrieved is not None else {}
    screen.line()
    for citation in citations:
        passage = passages.get(citation.passage_id)
        title = (passage.title if passage is not None else "") or citation.passage_id
        line = Text(f"  [{citation.rank}] ", style="cyan") + Text(clean(title))
        line += Text(f"  {clean(citation.provider) or NOBODY}", style="green")
        if passage is not None and (where := place(passage.attributes)):
            line += Text(f"  {clean(where)}")
        if title != citation.passage_id:
            line += Text(f"  {clean(citation.passage_id)}", style="dim")
        screen.out.print(line, soft_wrap=True)


def place(attributes: Mapping[str, str]) -> str:
    """Return where a passage stands, such as ``guide.pdf, page 3``; empty if it does not say."""
    document, page = attributes.get("document", ""), attributes.get("page", "")
    return f"{document}, page {page}" if document and page else document


def show_vote(screen: Screen, result: AskResult) -> None:
    """Show what each member of an ensemble answered, and which members are missing."""
    if result.vote is None:
        return
    screen.line()
    table = screen.table("", "member", "answer", title=f"Votes of {result.vote.num_answers} answers")
    for answer in result.answers:
        won = "*" if answer.member == result.vote.member else ""
        table.add_row(won, clean(answer.member), Text(clean(answer.text) or EMPTY))
    screen.out.print(table)
    if result.vote.missing:
        screen.line(f"missing: {', '.join(result.vote.missing)}", style="yellow")


def show_exposure(screen: Screen, report: Report, *, heading: str, single: bool) -> None:
    """Show which providers the model was shown, and how unevenly; ``single``: in one ranking."""
    screen.line(heading, style="bold")
    if any(report.exposure):
        screen.out.print(provider_table(screen, report.providers))
        scale = "1: always the same passages; k / pool: all of the pool equally often"
        if single:
            scale = "of one ranking it is always 1; draw several with --samples"
        parts = [f"EE-D {report.ee_d_norm:.3f} ({scale})"]
    else:
        parts = ["no passage was shown"]
    if report.ee_r_norm is not None:
        parts.append(f"EE-R {report.ee_r_norm:.3f}")
    if report.expected_utility is not None:
        parts.append(f"expected utility {report.expected_utility:.3f}")
    screen.line(" · ".join(parts))


def show_policy(screen: Screen, policy: Policy) -> None:
    """Show how rankings were drawn to reach a target, and what is expected of them."""
    dial = "" if policy.alpha is None else f"α = {policy.alpha:.3g}, "
    screen.line(
        f"{_wanted(policy)}: {dial}expected EE-D {policy.disparity:.3f}, "
        f"relevance {policy.relevance:.3f} of {policy.best_relevance:.3f} without sampling "
        f"({policy.relevance_loss:.1%} given up)"
    )
    for one in policy.shares:
        screen.line(clean(f"  {one.bound.attribute} {one.bound.value}: {one.share:.1%} expected"))
    for offset in sorted(policy.offsets, key=lambda one: -abs(one.offset))[:_MOST_OFFSETS]:
        screen.line(clean(f"  {offset.provider}: {offset.offset:+.3f}, owed {offset.owed:+.2f} contexts"))
    if not policy.reached:
        _warn(screen, clean(policy.note))


def _wanted(policy: Policy) -> str:
    if policy.balance is not None:
        return f"Fairness over time, strength {policy.balance.strength:g} up to {policy.balance.limit:g}"
    return f"Target {_target(policy)}"


def _target(policy: Policy) -> str:
    if policy.target_disparity is not None:
        return f"disparity {policy.target_disparity:g}"
    if policy.target_relevance_loss is not None:
        return f"relevance loss {policy.target_relevance_loss:g}"
    return clean(", ".join(map(_bound, policy.target_shares)))


def _bound(share: GroupShare) -> str:
    words = [f"{share.attribute} {share.value}".rstrip()]
    if share.at_least:
        words.append(f"at least {share.at_least:g}")
    if share.at_most is not None and share.at_most < 1:
        words.append(f"at most {share.at_most:g}")
    return " ".join(words)


def provider_table(screen: Screen, providers: Sequence[ExposureShare]) -> object:
    """Return a table of providers with the share of exposure that each got."""
    with_target = any(share.target is not None for share in providers)
    columns = ["provider", "", "share", "exposure", *(["target"] if with_target else [])]
    table = screen.table(*columns, right=("share", "exposure", "target"))
    for share in providers[:MAX_PROVIDERS]:
        row: list[str | Text] = [
            Text(clean(share.name) or NOBODY),
            screen.bar(share.share),
            f"{share.share:.1%}",
            f"{share.exposure:.2f}",
        ]
        if with_target:
            row.append("" if share.target is None else f"{share.target:.2f}")
        table.add_row(*row)
    if len(providers) > MAX_PROVIDERS:
        rest = sum(share.share for share in providers[MAX_PROVIDERS:])
        table.add_row(f"and {len(providers) - MAX_PROVIDERS} more", screen.bar(rest), f"{rest:.1%}", "")
    return table


def show_run(screen: Screen, report: RunReport) -> None:
    """Show a run's report."""
    screen.line(_title(report), style="bold")
    screen.line(
        f"{report.num_observations:,} asks, {report.num_rankings:,} rankings, "
        f"{report.num_unanswered:,} unanswered; {moment(report.started_at)} to {moment(report.updated_at)}"
    )
    screen.line()
    measures = screen.table("measure", "mean", "95 % interval", "asks", right=("mean", "asks"))
    for label, estimate in (
        ("EE-D, of its bound", report.ee_d_norm),
        ("EE-R, of its bound", report.ee_r_norm),
        ("expected utility", report.expected_utility),
    ):
        measures.add_row(label, *_cells(estimate, "{:.3f}"))
    for label, estimate in (
        ("expected utility, of its maximum", report.normalized_expected_utility),
        ("vote agreement", report.vote_agreement),
        ("retriever error", report.retriever_error),
        ("hallucination", report.hallucination_error),
        ("extraction error", report.extraction_error),
        ("lucky guess", report.lucky_guess),
        ("R, of conversations", report.conversation_relevance),
        ("GF, of conversations", report.conversation_group_fairness),
        ("GFRC, of conversations", report.conversation_combined),
    ):
        if estimate.count:
            measures.add_row(label, *_cells(estimate, "{:.3f}"))
    for stage, estimate in report.stages.items():
        measures.add_row(f"{stage}, ms", *_cells(estimate, "{:,.1f}"))
    screen.out.print(measures)
    if 0 < report.num_rankings == report.num_observations:
        screen.line(
            "EE-D is of the rankings of each ask: of one ranking it is 1, however asks differ", style="dim"
        )
    if report.providers:
        screen.line()
        screen.line("Exposure", style="bold")
        screen.out.print(provider_table(screen, report.providers))
        labelled = report.ee_r_norm.count
        if 0 < labelled < report.num_observations:
            screen.line(f"Exposure is of all asks, the target of the {labelled:,} with labels", style="dim")
    for count in report.degradations:
        _warn(screen, f"{count.stage} degraded in {count.count:,} asks ({count.reason})")


def _title(report: RunReport) -> str:
    of_window = {"all": "", "hour": ", last hour", "day": ", last 24 hours"}[report.window]
    if report.configuration is None:
        return f"Run {report.run_id}{of_window}"
    return f"Configuration {configuration_shown(report.configuration)}{of_window}"


def moment(when: datetime) -> str:
    """Return a time in this machine's time zone, for a person to read."""
    return f"{when.astimezone():%Y-%m-%d %H:%M:%S}"


def _heading(samples: int | None, alpha: float | None, policy: Policy | None) -> str:
    if samples is None and alpha is None and policy is None:
        return "Exposure: who the model was shown"
    dial = "α = 1 (default)" if alpha is None else f"α = {alpha:g}"
    if policy is not None:
        dial = "the shares" if policy.alpha is None else f"α = {policy.alpha:.3g}"
    rankings = f"{samples} rankings" if samples not in (None, 1) else "one sampled ranking"
    return f"Exposure: who the model was shown, {rankings} at {dial}"


def _cells(estimate: Estimate, pattern: str) -> tuple[str, str, str]:
    mean = "–" if estimate.mean is None else pattern.format(estimate.mean)
    interval = ""
    if estimate.low is not None and estimate.high is not None:
        interval = f"{pattern.format(estimate.low)} to {pattern.format(estimate.high)}"
    return mean, interval, f"{estimate.count:,}"


def left_out(answers: Sequence[Answer]) -> list[str]:
    """Return lines on what the model did not read of the question, ranked passages and earlier turns."""
    lines = []
    if any(answer.cut_question for answer in answers):
        lines.append("the model read of the question what ends with a question mark, and a few words")
    for count, what in (
        (sum(answer.dropped_passages for answer in answers), "left out"),
        (sum(answer.cut_passages for answer in answers), "cut at the end"),
    ):
        if count:
            where = f" of {len(answers)} contexts" if len(answers) > 1 else ""
            lines.append(f"too long for the model: {count} passage{'s' if count > 1 else ''}{where} {what}")
    if turns := max((answer.dropped_turns for answer in answers), default=0):
        lines.append(f"the model did not read {turns} earlier turn{'s' if turns > 1 else ''}")
    return lines


def _failures(failures: Sequence[Failed]) -> list[str]:
    """Return a line per reason with the number of samples without an answer, or per member of an ensemble."""
    samples: dict[str, int] = {}
    members = []
    for failure in failures:
        why = f"{failure.message} ({failure.reason})"
        if failure.member:
            members.append(f"no answer of {failure.member}: {why}")
        else:
            samples[why] = samples.get(why, 0) + max(1, len(failure.samples))
    return members + [
        f"no answer for {count} sample{'s' if count > 1 else ''}: {why}" for why, count in samples.items()
    ]


def _degradation(degraded: Degraded) -> str:
    action = degraded.action.replace("_", " ")
    return f"{degraded.stage} degraded, {action}: {degraded.message} ({degraded.reason})"


def _warn(screen: Screen, message: str) -> None:
    screen.line(f"! {message}", style="yellow")


def _ms(value: float) -> str:
    return f"{value / 1000:.1f} s" if value >= 10_000 else f"{value:.0f} ms"


def configuration_shown(one: Configuration) -> str:
    """Return a configuration in a line."""
    parts = [part for part in (one.collection, one.retriever, one.reranker, one.generator) if part]
    dial = one.target or ("deterministic" if one.alpha is None else f"α = {one.alpha:g}")
    return " · ".join([*parts, dial])
