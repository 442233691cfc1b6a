"""``evenmesh chat``: a conversation with its relevance and fairness so far."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from evenmesh.commands.answering import Answering
from evenmesh.commands.ask import Target
from evenmesh.commands.dial import Disparity, RelevanceLoss, Share
from evenmesh.commands.failure import FAILED, USAGE, CommandError
from evenmesh.commands.option_groups import with_groups
from evenmesh.commands.screen import Screen
from evenmesh.commands.shares import shares_of
from evenmesh.commands.targets import HELP as TARGET_HELP
from evenmesh.commands.targets import attributes_json, read_target

if TYPE_CHECKING:
    from evenmesh import Client, Conversation
    from evenmesh.types.conversation import ConversationReport, GroupTarget, TurnEvent

_HELP: Final = (
    ("/target SPEC", "measure fairness against a target; /target off: against none; /target: show it"),
    ("/report", "relevance and group fairness so far, group by group"),
    ("/history HOW", "search and answer without earlier turns, or search with their words or a rewrite"),
    ("/reset", "begin another conversation"),
    ("/help", "show these lines"),
    ("/quit", "end, as Ctrl-D does; Ctrl-C ends the turn in progress, then the chat"),
)
_INTERRUPTED: Final = 130
_PROVIDER: Final = "provider"
_QUICK_TO_READ: Final = 50_000


@with_groups
def chat(
    answering: Answering,
    expression: Annotated[
        str | None,
        typer.Option("--expression", "-e", help="Sources of the mesh, such as Wiki@RR@5; not a collection."),
    ] = None,
    fair: Annotated[
        list[str] | None,
        typer.Option(
            "--fair",
            metavar="SPEC",
            help=f"{TARGET_HELP} Default: equal shares for the providers of --collection, if that is small.",
        ),
    ] = None,
    history: Annotated[
        str, typer.Option(help="How search and model use earlier turns: none, words or rewrite.")
    ] = "words",
    history_turns: Annotated[
        int | None, typer.Option(min=1, max=100, help="Earlier turns that search and model use. Default: 10.")
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(help="Prompt template that shows the model earlier turns, see docs/guides/prompts.md."),
    ] = None,
    entity: Annotated[
        str | None,
        typer.Option(
            metavar="ATTRIBUTE", help="Attribute that names an entity. Default: each passage is one."
        ),
    ] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Fairness dial: each turn sees one sampled ranking.")
    ] = None,
    disparity: Disparity = None,
    relevance_loss: RelevanceLoss = None,
    share: Share = None,
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the annotated conversation after each turn, and its targets next to it.",
        ),
    ] = None,
    topic: Annotated[str, typer.Option(help="Name of the saved conversation.")] = "chat",
    timeout: Annotated[float, typer.Option(min=0.001, max=3600, help="Seconds for a turn.")] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per event, a line each.")] = False,
    target: Target = None,
) -> None:
    """Converse with the mesh, turn by turn.

    After each answer it shows the sources, and the relevance (R) and group fairness (GF) of the conversation
    so far. Lines from a pipe are turns too. /help lists the commands.
    """
    from evenmesh import Client

    screen = Screen()
    if history not in ("none", "words", "rewrite"):
        raise CommandError(f"--history is {history!r}; allowed: none, words, rewrite", USAGE)
    if not topic.strip() or "\n" in topic:
        raise CommandError(f"--topic is {topic!r}; allowed: one line", USAGE)
    if save is not None and not save.absolute().parent.is_dir():
        raise CommandError(f"{save}: there is no folder {str(save.parent)!r}", USAGE)
    options: Any = {
        **answering.options(),
        "expression": expression,
        "alpha": alpha,
        "disparity": disparity,
        "relevance_loss": relevance_loss,
        "shares": shares_of(share),
    }
    collection = answering.collection
    with Client(target) as mesh:
        targets = [read_target(one, mesh, collection) for one in fair or ()]
        if fair is None and collection is not None:
            targets = _providers(screen, mesh, collection)
        how: Any = {
            "targets": targets,
            "history": history,
            "history_turns": history_turns,
            "template": template,
            "entity_attribute": entity,
        }
        with mesh.converse(conversation=how, timeout=timeout, **options) as conversation:
            session = _Session(screen, mesh, conversation, collection, save, topic.strip(), as_json)
            status = session.run()
    if status:
        raise typer.Exit(status)


def _providers(screen: Screen, mesh: "Client", collection: str) -> "list[GroupTarget]":
    """Return the default target, equal shares of all providers, for a collection that is small enough."""
    if mesh.collection(collection).num_passages > _QUICK_TO_READ:
        screen.note("the collection is too large to look up its groups: --fair SPEC shows R and GF")
        return []
    try:
        return [read_target(_PROVIDER, mesh, collection)]
    except CommandError:
        screen.note(f"{collection} has fewer than two providers: --fair SPEC shows R and GF")
        return []


@dataclass(eq=False)
class _Session:
    """Reads lines and takes turns until the chat ends."""

    screen: Screen
    mesh: "Client"
    conversation: "Conversation"
    collection: str | None
    save: Path | None
    topic: str
    as_json: bool
    _earlier: list[str] = field(default_factory=list, init=False)
    _report: "ConversationReport | None" = field(default=None, init=False)
    _failed: bool = field(default=False, init=False)

    def run(self) -> int:
        """Take the turns of all lines and return the exit status: 1 where a turn from a pipe failed."""
        interactive = sys.stdin.isatty()  # the loop may end by closing it
        if interactive:
            self.screen.note("/help lists the commands; /quit or Ctrl-D ends")
        try:
            for line in _lines():
                text = line.strip()
                if text.startswith("/"):
                    if not self._command(text):
                        break
                elif text:
                    self._turn(text)
        except KeyboardInterrupt:
            self.screen.note("")
            return _INTERRUPTED
        return FAILED if self._failed and not interactive else 0

    def _turn(self, question: str) -> None:
        from evenmesh.wire.errors import MeshError

        view = _TurnView(self.screen, as_json=self.as_json)
        events = self.conversation.ask(question)
        try:
            for event in events:
                view.show(event)
        except KeyboardInterrupt:
            events.close()  # type: ignore[attr-defined]  # it is a generator; this cancels the turn
            view.line.end()
            if not sys.stdin.isatty():
                raise
            self.screen.note("the turn is cancelled; Ctrl-C again ends the chat", style="yellow")
            return
        except MeshError as error:
            view.line.end()
            self._failed = True
            if error.reason == "UNREACHABLE":
                raise
            self.screen.fail(f"{error} ({error.reason}); the conversation continues without this turn")
            return
        view.line.end()
        self._report = view.report or self._report
        self._write()

    def _command(self, text: str) -> bool:
        """Run a command of the chat; return False where it ends the chat."""
        name, _, rest = text.partition(" ")
        rest = rest.strip()
        match name:
            case "/quit" | "/exit":
                return False
            case "/help":
                table = self.screen.table("", "")
                for command, meaning in _HELP:
                    table.add_row(command, meaning)
                self.screen.out.print(table)
            case "/reset":
                self._earlier.extend([self._text()] if self.conversation.transcript else [])
                self.conversation.reset()
                self._report = None
                self.screen.note("a new conversation")
            case "/target":
                self._target(rest)
            case "/report":
                self._show_report()
            case "/history" if rest in ("none", "words", "rewrite"):
                self.conversation.set(history=rest)
            case "/history":
                self._complain(f"/history is {rest!r}; allowed: none, words, rewrite")
            case _:
                self._complain(f"there is no {name}; /help lists the commands")
        return True

    def _target(self, text: str) -> None:
        from evenmesh.wire.errors import MeshError

        if text == "off":
            self.conversation.set(targets=[])
        elif text:
            try:
                self.conversation.set(targets=[read_target(text, self.mesh, self.collection)])
            except (CommandError, MeshError) as error:
                self._complain(str(error))
        for one in self.conversation.conversation.get("targets") or ():
            self._show_target(one)

    def _show_target(self, target: "GroupTarget") -> None:
        shares = target.shares or (1 / len(target.groups),) * len(target.groups)
        pairs = ", ".join(f"{group} {share:.1%}" for group, share in zip(target.groups, shares, strict=True))
        self.screen.line(f"{target.attribute} ({target.divergence}): {pairs}", style="dim")

    def _show_report(self) -> None:
        if self._report is None:
            self.screen.note("no turn has been measured; /target SPEC sets what to measure against")
            return
        self.screen.line(_summary(self._report))
        for target in self.conversation.conversation.get("targets") or ():
            found = self._report.by_attribute.get(target.attribute)
            if found is None:
                continue
            known = [one for one in found.achieved if one is not None]
            shares = target.shares or (1 / len(target.groups),) * len(target.groups)
            table = self.screen.table(target.attribute, "achieved", "target", right=("achieved", "target"))
            for place, (group, share) in enumerate(zip(target.groups, shares, strict=True)):
                mean = f"{sum(one[place] for one in known) / len(known):.1%}" if known else "–"
                table.add_row(group, mean, f"{share:.1%}")
            self.screen.out.print(table)

    def _complain(self, message: str) -> None:
        self._failed = True
        self.screen.fail(message)

    def _text(self) -> str:
        name = self.topic if not self._earlier else f"{self.topic}-{len(self._earlier) + 1}"
        return f"##### {name}\n{self.conversation.transcript}"

    def _write(self) -> None:
        if self.save is not None:
            self.save.write_text("".join([*self._earlier, self._text()]), encoding="utf-8")
            targets = self.conversation.conversation.get("targets")
            if targets:
                beside = self.save.with_suffix(".attributes.json")
                beside.write_text(attributes_json(targets) + "\n", encoding="utf-8")


class _TurnView:
    """Shows one turn: the answer as it is written, its sources, and the conversation's measures so far."""

    def __init__(self, screen: Screen, *, as_json: bool) -> None:
        from evenmesh.commands.views import AnswerLine

        self._screen = screen
        self._as_json = as_json
        self._titles: dict[str, str] = {}
        self.line = AnswerLine(screen)
        self.report: ConversationReport | None = None

    def show(self, event: "TurnEvent") -> None:
        """Show one event."""
        from evenmesh.commands.views import left_out, show_confidence
        from evenmesh.types.conversation import ConversationReport, LookedFor
        from evenmesh.types.events import Answer, Degraded, Delta, Done, Failed, Retrieved

        if isinstance(event, ConversationReport):
            self.report = event
        if self._as_json:
            self._screen.event(event)
            return
        match event:
            case LookedFor(text=text):
                self._screen.note(f"searching for: {text}")
            case Retrieved(passages=passages):
                self._titles = {one.id: one.title for one in passages}
            case Delta(text=text):
                self.line.write(text)
            case Answer():
                if not self.line.begun:
                    self.line.write(event.text or "No answer.")
                self.line.end()
                for place, one in enumerate(event.citations, start=1):
                    title = self._titles.get(one.passage_id) or one.passage_id
                    self._screen.line(f"  [{place}] {title}  {one.provider}  {one.passage_id}", style="cyan")
                show_confidence(self._screen, event)
                for line in left_out([event]):
                    self._screen.note(f"! {line}", style="yellow")
            case Failed(message=message, reason=reason) | Degraded(message=message, reason=reason):
                self.line.end()
                self._screen.note(f"! {message} ({reason})", style="yellow")
            case ConversationReport():
                self._screen.line(_summary(event), style="dim")
            case Done(seed=int(seed)):
                self._screen.note(f"seed {seed}")
            case _:
                pass


def _summary(report: "ConversationReport") -> str:
    turn = "" if report.turn_relevance is None else f" (+{report.turn_relevance:.4f})"
    turn_fairness = "no source" if report.turn_group_fairness is None else f"{report.turn_group_fairness:.3f}"
    parts = [
        f"R {report.relevance:.4f}{turn}",
        f"GF {report.group_fairness:.3f} (this turn: {turn_fairness})",
    ]
    parts.extend(f"{name} {found.group_fairness:.3f}" for name, found in report.by_attribute.items())
    parts.append(f"{report.num_words:,} words")
    if report.num_ungrouped:
        parts.append(f"{report.num_ungrouped} sources without a group")
    return " · ".join(parts)


def _lines() -> Iterator[str]:
    """Yield the lines of a pipe, or of a person at a prompt."""
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    import readline  # noqa: F401 - gives input() its history and keys

    while True:
        try:
            yield input("> ")
        except EOFError:
            return
