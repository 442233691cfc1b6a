"""``evenmesh feedback`` and ``evenmesh agents``: what agents say of passages, and who they are."""

import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evenmesh.commands.collection_files import check_parquet
from evenmesh.commands.failure import FAILED, USAGE, CommandError
from evenmesh.commands.group import group
from evenmesh.commands.screen import Screen

if TYPE_CHECKING:
    from evenmesh.types.feedback import AgentSummary, Feedback, Recorded
    from evenmesh.types.request import Agent

_SHOWN = 20

Task = Annotated[str | None, typer.Option("--task", help="Only of the agent with this task id.")]
Model = Annotated[str | None, typer.Option("--model", help="Only of the agent with this model id.")]


def feedback() -> typer.Typer:
    """Return the commands of ``evenmesh feedback``."""
    return group("feedback", "Record how useful passages were; show what is recorded.", record, stats, export)


def agents() -> typer.Typer:
    """Return the commands of ``evenmesh agents``."""
    return group("agents", "List, register or delete agents.", list_, register, delete)


def record(
    file: Annotated[
        Path,
        typer.Argument(
            help="JSON lines {query, passage_id, usefulness, agent, …}, or what `feedback export` wrote; "
            "- reads JSON lines from standard input."
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Record feedback from a file.

    Stored feedback is durable. You can send a file again: it reports items that are already stored. A refused
    item does not affect the others.
    """
    from evenmesh import Client
    from evenmesh.files.passages import is_parquet
    from evenmesh.types.feedback import read

    screen = Screen()
    unplaced = 0

    def seen(items: Iterable["Feedback"]) -> Iterator["Feedback"]:
        """Yield items; count those that name no collection."""
        nonlocal unplaced
        for one in items:
            unplaced += not one.collection
            yield one

    with Client() as mesh:
        if str(file) == "-":
            done = mesh.record_feedback(seen(read(sys.stdin.buffer, file)))
        elif is_parquet(file):
            from evenmesh.files import feedback_parquet

            done = mesh.record_feedback(seen(feedback_parquet.read(file)))
        else:
            with file.open("rb") as stream:
                done = mesh.record_feedback(seen(read(stream, file)))
    if as_json:
        screen.json(
            {
                "stored": done.stored,
                "duplicates": done.duplicates,
                "flagged": done.flagged,
                "without_collection": unplaced,
                "refused": [
                    {"id": one.id, "reason": one.error.reason, "message": str(one.error)}
                    for one in done.refused
                    if one.error is not None
                ],
            }
        )
    else:
        _show_recorded(screen, done)
        if unplaced:
            screen.note(f"items without a collection, from which no trainer can learn: {unplaced:,}")
    if done.refused:
        raise CommandError(f"items refused: {len(done.refused):,} of {len(done.results):,}", FAILED)


def stats(
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Show the feedback of each agent, and what waits for training."""
    from evenmesh import Client

    screen = Screen()
    with Client() as mesh:
        found, training = mesh.agents(), mesh.training_status()
    if as_json:
        screen.json({"agents": found, "training": training})
        return
    if not found:
        screen.line("No feedback yet; record some with: evenmesh feedback record FILE")
        return
    _table(screen, found)
    screen.line(f"{training.state}: {training.message or 'nothing was said'}")


def export(
    file: Annotated[Path, typer.Argument(help="Parquet file to write; must not exist.")],
    task: Task = None,
    model: Model = None,
    since: Annotated[
        datetime | None,
        typer.Option(help="Only feedback stored at this time or later; UTC unless it states a zone."),
    ] = None,
    flagged: Annotated[
        bool, typer.Option("--flagged", help="Also feedback that is not used for training.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Write the stored feedback to a Parquet file, oldest first."""
    from evenmesh import Client
    from evenmesh.files.feedback_parquet import write

    screen = Screen()
    check_parquet(file)
    begins = since if since is None or since.tzinfo is not None else since.replace(tzinfo=UTC)
    with Client() as mesh:
        items = mesh.export_feedback(agent=named(task, model), since=begins, include_flagged=flagged)
        count = write(file, items)
    screen.answer({"file": str(file), "items": count}, f"{file}: {count:,} items", as_json=as_json)


def list_(
    as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False,
) -> None:
    """List the agents that are registered or gave feedback."""
    from evenmesh import Client

    screen = Screen()
    with Client() as mesh:
        found = mesh.agents()
    if as_json:
        screen.json(found)
    elif found:
        _table(screen, found)
    else:
        screen.line("No agents yet; register one with: evenmesh agents register TASK MODEL")


def register(
    task: Annotated[str, typer.Argument(help="Id of its task, such as qa-open.")],
    model: Annotated[str, typer.Argument(help="Id of its model, such as t5-small-fid.")],
    description: Annotated[str, typer.Option(help="Free text about it.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Register an agent: learned models then have separate tokens for it."""
    from evenmesh import Client
    from evenmesh.types.request import Agent

    screen = Screen()
    with Client() as mesh:
        found = mesh.register_agent(Agent(task, model), description)
    if as_json:
        screen.json(found)
    else:
        known = "has tokens for it" if found.known_to_model else "has no tokens for it before it is trained"
        screen.line(f"{task} / {model} is registered; the served model {known}")


def delete(
    task: Annotated[str, typer.Argument(help="Id of its task; '' if it has none.")],
    model: Annotated[str, typer.Argument(help="Id of its model; '' if it has none.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print what was deleted as JSON.")] = False,
) -> None:
    """Delete an agent with its feedback and its own model versions.

    Then it is ranked by the model of all agents, and counts against no limit. To keep the feedback, export it
    before. An agent that gives feedback afterwards is a new one.
    """
    from evenmesh import Client
    from evenmesh.types.request import Agent

    screen = Screen()
    with Client() as mesh:
        done = mesh.delete_agent(Agent(task, model))
    if as_json:
        screen.json(done)
    elif done.deleted:
        screen.line(
            f"{task} / {model} is deleted: {done.num_feedback:,} items of feedback, "
            f"{done.num_models:,} model versions"
        )
    if not done.deleted:
        raise CommandError(f"there is no agent {task} / {model}", FAILED)


def named(task: str | None, model: str | None) -> "Agent | None":
    """Return the agent that the options name; None without options.

    Raises:
        CommandError: only one of task and model is given.
    """
    from evenmesh.types.request import Agent

    if task is None and model is None:
        return None
    if task is None or model is None:
        raise CommandError(
            "an agent is a task and a model: give both --task and --model, '' for one that it does not have",
            USAGE,
        )
    return Agent(task, model)


def _show_recorded(screen: Screen, done: "Recorded") -> None:
    parts = [f"{done.stored:,} stored", f"{done.duplicates:,} stored before"]
    if done.flagged:
        parts.append(f"{done.flagged:,} of them kept out of training")
    screen.line(", ".join(parts))
    for one in done.refused[:_SHOWN]:
        screen.note(f"{one.id}: {one.error}")
    if len(done.refused) > _SHOWN:
        screen.note(f"and {len(done.refused) - _SHOWN:,} more")


def _table(screen: Screen, found: "list[AgentSummary]") -> None:
    from evenmesh.commands.views import moment

    numbers = ("items", "flagged", "today", "useful")
    table = screen.table("task", "model", "registered", "tokens", *numbers, "latest", right=numbers)
    for one in found:
        table.add_row(
            one.agent.task_id or "–",
            one.agent.model_id or "–",
            "–" if one.registered_at is None else moment(one.registered_at),
            "yes" if one.known_to_model else "no",
            f"{one.num_feedback:,}",
            f"{one.num_flagged:,}",
            f"{one.num_today:,}",
            "–" if one.mean_usefulness is None else f"{one.mean_usefulness:.3f}",
            "–" if one.last_feedback_at is None else moment(one.last_feedback_at),
        )
    screen.out.print(table)
