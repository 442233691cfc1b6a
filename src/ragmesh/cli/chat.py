"""``ragmesh chat``: a conversation, and how relevant and fair it is as it goes."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ragmesh.cli.ask import Target
from ragmesh.cli.failure import FAILED, USAGE, CommandError
from ragmesh.cli.filters import FILTER_HELP, filter_of
from ragmesh.cli.screen import Screen
from ragmesh.cli.targets import HELP as TARGET_HELP
from ragmesh.cli.targets import attributes_json, read_target

if TYPE_CHECKING:
    from ragmesh.client import Client
    from ragmesh.conversation import ConversationReport, GroupTarget, TurnEvent
    from ragmesh.conversation_calls import Conversation

_HELP: Final = (
    ("/target SPEC", "hold the conversation against a target; /target off against none; /target shows it"),
    ("/report", "relevance and group fairness so far, group by group"),
    ("/history HOW", "look for passages with none of the earlier turns, their words, or a rewrite"),
    ("/reset", "begin another conversation"),
    ("/help", "these lines"),
    ("/quit", "end; Ctrl-D too. Ctrl-C ends the turn under way, then the chat"),
)
_INTERRUPTED: Final = 130
_PROVIDER: Final = "provider"
_QUICK_TO_READ: Final = 50_000


def chat(
    collection: Annotated[
        str | None, typer.Option("--collection", "-c", help="Collection to ask. Default: the mesh's own.")
    ] = None,
    expression: Annotated[
        str | None,
        typer.Option("--expression", "-e", help="Sources of the mesh, such as Wiki@RR@5; not a collection."),
    ] = None,
    fair: Annotated[
        list[str] | None,
        typer.Option(
            "--fair",
            metavar="SPEC",
            help=f"{TARGET_HELP} Default: the providers of --collection alike, if that is small.",
        ),
    ] = None,
    history: Annotated[
        str, typer.Option(help="What passages are looked for with, beside the turn: none, words or rewrite.")
    ] = "words",
    history_turns: Annotated[
        int | None, typer.Option(min=1, max=100, help="Earlier turns that it is made of. Default: 10.")
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(help="Prompt template that shows the model earlier turns, see docs/prompts.md."),
    ] = None,
    entity: Annotated[
        str | None,
        typer.Option(metavar="ATTRIBUTE", help="What tells entities apart. Default: each passage is one."),
    ] = None,
    filter_: Annotated[list[str] | None, typer.Option("--filter", help=FILTER_HELP)] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Fairness dial: each turn sees one sampled ranking.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sampling.")] = 0,
    k: Annotated[int | None, typer.Option("-k", help="Passages the model is given.")] = None,
    depth: Annotated[int | None, typer.Option(help="Size of the candidate pool.")] = None,
    retriever: Annotated[str | None, typer.Option(help="Retriever by name, such as bm25.")] = None,
    reranker: Annotated[str | None, typer.Option(help="cross-encoder, rankrag or none.")] = None,
    model: Annotated[str | None, typer.Option(help="The generator's model by name.")] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write it, annotated, after each turn, and its targets beside it."),
    ] = None,
    topic: Annotated[str, typer.Option(help="What the saved conversation is called.")] = "chat",
    run: Annotated[str | None, typer.Option(help="Run to file it under. Default: one per day.")] = None,
    timeout: Annotated[float, typer.Option(min=0.001, max=3600, help="Seconds for a turn.")] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per event, a line each.")] = False,
    target: Target = None,
) -> None:
    """Talk with the mesh, turn by turn.

    After each answer: its sources, and how relevant (R) and fair to groups (GF) the conversation is so far.
    Lines from a pipe are turns too. /help lists what else can be said.
    """
    from ragmesh.client import Client

    screen = Screen()
    if history not in ("none", "words", "rewrite"):
        raise CommandError(f"--history is {history!r}; allowed: none, words, rewrite", USAGE)
    if not topic.strip() or "\n" in topic:
        raise CommandError(f"--topic is {topic!r}; allowed: one line", USAGE)
    if save is not None and not save.absolute().parent.is_dir():
        raise CommandError(f"{save}: there is no folder {str(save.parent)!r}", USAGE)
    options: Any = {
        "collection": collection,
        "expression": expression,
        "filter": filter_of(filter_ or []),
        "alpha": alpha,
        "seed": seed,
        "k": k,
        "depth": depth,
        "retriever": retriever,
        "reranker": reranker,
        "model": model,
        "run_id": run,
    }
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
        conversation = mesh.converse(
            conversation=how,
            timeout=timeout,
            **options,
        )
        with conversation:
            session = _Session(screen, mesh, conversation, collection, save, topic.strip(), as_json)
            status = session.run()
    if status:
        raise typer.Exit(status)


def _providers(screen: Screen, mesh: "Client", collection: str) -> "list[GroupTarget]":
    """What is fair where nobody says: all providers of a collection alike, if it is small enough to look."""
    if mesh.collection(collection).num_passages > _QUICK_TO_READ:
        screen.note("a large collection, whose groups are not looked up: --fair SPEC shows R and GF")
        return []
    try:
        return [read_target(_PROVIDER, mesh, collection)]
    except CommandError:
        screen.note(f"{collection} has no two providers: --fair SPEC shows R and GF")
        return []


class _Session:
    """One chat: lines in, turns out."""

    def __init__(
        self,
        screen: Screen,
        mesh: "Client",
        conversation: "Conversation",
        collection: str | None,
        save: Path | None,
        topic: str,
        as_json: bool,
    ) -> None:
        self._screen = screen
        self._mesh = mesh
        self._conversation = conversation
        self._collection = collection
        self._save = save
        self._topic = topic
        self._as_json = as_json
        self._earlier: list[str] = []
        self._report: ConversationReport | None = None
        self._failed = False

    def run(self) -> int:
        """Takes lines until there are no more; the exit status: 1 where a turn of a pipe failed."""
        if sys.stdin.isatty():
            self._screen.note("/help lists what can be said beside questions; /quit or Ctrl-D ends")
        try:
            for line in _lines():
                text = line.strip()
                if text.startswith("/"):
                    if not self._command(text):
                        break
                elif text:
                    self._turn(text)
        except KeyboardInterrupt:
            self._screen.note("")
            return _INTERRUPTED
        return FAILED if self._failed and not sys.stdin.isatty() else 0

    def _turn(self, question: str) -> None:
        from meshkit.errors import MeshError

        view = _TurnView(self._screen, as_json=self._as_json)
        events = self._conversation.ask(question)
        try:
            for event in events:
                view.show(event)
        except KeyboardInterrupt:
            events.close()  # type: ignore[attr-defined]  # it is a generator; this cancels the turn
            view.end()
            if not sys.stdin.isatty():
                raise
            self._screen.note("the turn is cancelled; Ctrl-C again ends the chat", style="yellow")
            return
        except MeshError as error:
            view.end()
            self._failed = True
            if error.reason == "UNREACHABLE":
                raise
            self._screen.fail(f"{error} ({error.reason}); the conversation goes on without this turn")
            return
        view.end()
        self._report = view.report or self._report
        self._write()

    def _command(self, text: str) -> bool:
        """Does what a line that is no question says; False where it ends the chat."""
        name, _, rest = text.partition(" ")
        rest = rest.strip()
        match name:
            case "/quit" | "/exit":
                return False
            case "/help":
                table = self._screen.table("", "")
                for command, meaning in _HELP:
                    table.add_row(command, meaning)
                self._screen.out.print(table)
            case "/reset":
                self._earlier.extend([self._text()] if self._conversation.transcript else [])
                self._conversation.reset()
                self._report = None
                self._screen.note("a new conversation")
            case "/target":
                self._target(rest)
            case "/report":
                self._show_report()
            case "/history" if rest in ("none", "words", "rewrite"):
                self._conversation.set(history=rest)
            case "/history":
                self._complain(f"/history is {rest!r}; allowed: none, words, rewrite")
            case _:
                self._complain(f"there is no {name}; /help lists what there is")
        return True

    def _target(self, text: str) -> None:
        from meshkit.errors import MeshError

        if text == "off":
            self._conversation.set(targets=[])
        elif text:
            try:
                self._conversation.set(targets=[read_target(text, self._mesh, self._collection)])
            except (CommandError, MeshError) as error:
                self._complain(str(error))
        for one in self._conversation.conversation.get("targets") or ():
            self._show_target(one)

    def _show_target(self, target: "GroupTarget") -> None:
        shares = target.shares or (1 / len(target.groups),) * len(target.groups)
        pairs = ", ".join(f"{group} {share:.1%}" for group, share in zip(target.groups, shares, strict=True))
        self._screen.line(f"{target.attribute} ({target.divergence}): {pairs}", style="dim")

    def _show_report(self) -> None:
        if self._report is None:
            self._screen.note("no turn has been measured; /target SPEC says against what to measure")
            return
        self._screen.line(_summary(self._report))
        for target in self._conversation.conversation.get("targets") or ():
            found = self._report.by_attribute.get(target.attribute)
            if found is None:
                continue
            told = [one for one in found.achieved if one is not None]
            shares = target.shares or (1 / len(target.groups),) * len(target.groups)
            table = self._screen.table(target.attribute, "achieved", "target", right=("achieved", "target"))
            for place, (group, share) in enumerate(zip(target.groups, shares, strict=True)):
                mean = f"{sum(one[place] for one in told) / len(told):.1%}" if told else "–"
                table.add_row(group, mean, f"{share:.1%}")
            self._screen.out.print(table)

    def _complain(self, message: str) -> None:
        self._failed = True
        self._screen.fail(message)

    def _text(self) -> str:
        name = self._topic if not self._earlier else f"{self._topic}-{len(self._earlier) + 1}"
        return f"##### {name}\n{self._conversation.transcript}"

    def _write(self) -> None:
        if self._save is not None:
            self._save.write_text("".join([*self._earlier, self._text()]), encoding="utf-8")
            targets = self._conversation.conversation.get("targets")
            if targets:
                beside = self._save.with_suffix(".attributes.json")
                beside.write_text(attributes_json(targets) + "\n", encoding="utf-8")


class _TurnView:
    """Shows one turn: the answer as it is written, its sources, and the conversation so far."""

    def __init__(self, screen: Screen, *, as_json: bool) -> None:
        self._screen = screen
        self._as_json = as_json
        self._titles: dict[str, str] = {}
        self._writing = False
        self.report: ConversationReport | None = None

    def show(self, event: "TurnEvent") -> None:
        """Shows one event."""
        from dataclasses import fields

        from ragmesh.conversation import ConversationReport, LookedFor
        from ragmesh.events import Answer, Degraded, Delta, Failed, Retrieved

        if isinstance(event, ConversationReport):
            self.report = event
        if self._as_json:
            made = {field.name: getattr(event, field.name) for field in fields(event)}
            self._screen.json({"event": type(event).__name__.lower(), **made})
            return
        match event:
            case LookedFor(text=text):
                self._screen.note(f"looking for: {text}")
            case Retrieved(passages=passages):
                self._titles = {one.id: one.title for one in passages}
            case Delta(text=text):
                self._write(text)
            case Answer():
                if not self._writing:
                    self._write(event.text or "No answer.")
                self.end()
                for place, one in enumerate(event.citations, start=1):
                    title = self._titles.get(one.passage_id) or one.passage_id
                    self._screen.line(f"  [{place}] {title}  {one.provider}  {one.passage_id}", style="cyan")
            case Failed(message=message, reason=reason) | Degraded(message=message, reason=reason):
                self.end()
                self._screen.note(f"! {message} ({reason})", style="yellow")
            case ConversationReport():
                self._screen.line(_summary(event), style="dim")
            case _:
                pass

    def end(self) -> None:
        """Ends the line that is being written."""
        if self._writing:
            self._screen.line()
            self._writing = False

    def _write(self, text: str) -> None:
        from rich.text import Text

        from ragmesh.cli.screen import clean

        self._writing = True
        self._screen.out.print(Text(clean(text), style="bold"), end="", soft_wrap=True)


def _summary(report: "ConversationReport") -> str:
    turn = "" if report.turn_relevance is None else f" (+{report.turn_relevance:.4f})"
    said = "no source" if report.turn_group_fairness is None else f"{report.turn_group_fairness:.3f}"
    parts = [f"R {report.relevance:.4f}{turn}", f"GF {report.group_fairness:.3f} (this turn: {said})"]
    parts.extend(f"{name} {found.group_fairness:.3f}" for name, found in report.by_attribute.items())
    parts.append(f"{report.num_words:,} words")
    if report.num_ungrouped:
        parts.append(f"{report.num_ungrouped} sources without a group")
    return " · ".join(parts)


def _lines() -> Iterator[str]:
    """Lines of a person, who is prompted, or of a pipe."""
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    import readline  # noqa: F401 - gives input() its history and keys

    while True:
        try:
            yield input("> ")
        except EOFError:
            return
