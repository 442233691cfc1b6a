"""``evenmesh models``: versions of the learned reranker, which of them is served, and what training does."""

from typing import TYPE_CHECKING, Annotated

import typer

from evenmesh.commands.feedback import Model, Task, named
from evenmesh.commands.group import group
from evenmesh.commands.screen import Screen

if TYPE_CHECKING:
    from evenmesh.types.feedback import ModelVersion
    from evenmesh.types.request import Agent


def models() -> typer.Typer:
    """Return the commands of ``evenmesh models``."""
    return group(
        "models", "List versions of the learned reranker; choose one.", list_, promote, rollback, training
    )


def list_(
    task: Task = None,
    model: Model = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False,
) -> None:
    """List the versions, the served ones first, and mark those that wait for promotion."""
    from evenmesh import Client

    screen = Screen()
    with Client() as mesh:
        found = mesh.models(agent=named(task, model))
        trainings = () if as_json else mesh.training_status(agent=named(task, model)).trainings
    if as_json:
        screen.json(found)
    elif found:
        _table(screen, found, {one.candidate_version for one in trainings})
    elif task or model:
        screen.line("This agent has no version of its own; those of `evenmesh models list` rank for it")
    else:
        screen.line("No learned models; EVENMESH_RERANKER_CROSS_ENCODER names one to begin with")


def promote(
    version: Annotated[str, typer.Argument(help="The version, see `evenmesh models list`.")],
    merge_agent_tokens: Annotated[
        bool,
        typer.Option("--merge-agent-tokens", help="Keep the agent tokens of the served version."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Serve a version to its agent or to all, without a restart."""
    from evenmesh import Client

    screen = Screen()
    with Client() as mesh:
        done = mesh.promote_model(version, merge_agent_tokens=merge_agent_tokens)
    _show_promotion(screen, done, as_json=as_json)


def rollback(
    task: Task = None,
    model: Model = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Serve the previous version again, to all or to one agent."""
    from evenmesh import Client

    screen = Screen()
    with Client() as mesh:
        done = mesh.rollback_model(agent=named(task, model))
    _show_promotion(screen, done, as_json=as_json)


def training(
    task: Task = None,
    model: Model = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Show what trainers are doing and what waits for them."""
    from evenmesh import Client

    screen = Screen()
    with Client() as mesh:
        found = mesh.training_status(agent=named(task, model))
    if as_json:
        screen.json(found)
        return
    screen.line(f"{found.state}: {found.message or 'no message'}")
    numbers = ("done", "items wait", "queries wait")
    table = screen.table("agent", "state", *numbers, "candidate", "message", right=numbers)
    for one in found.trainings:
        table.add_row(
            _whose(one.agent),
            one.state,
            f"{one.progress:.0%}" if one.state == "running" else "–",
            f"{one.pending_feedback:,}",
            f"{one.pending_queries:,}",
            one.candidate_version or "–",
            one.message or "–",
        )
    screen.out.print(table)


def _table(screen: Screen, found: "list[ModelVersion]", candidates: set[str]) -> None:
    from evenmesh.commands.ingest import size
    from evenmesh.commands.views import moment

    table = screen.table("version", "served", "of", "made", "by", "from", "size", "measured", right=("size",))
    for one in found:
        measured = " ".join(f"{name}={value:g}" for name, value in sorted(one.metrics.items()))
        made = f"{one.provenance} (changes {one.base_version})" if one.base_version else one.provenance
        table.add_row(
            one.version,
            "yes" if one.serving else "candidate" if one.version in candidates else "–",
            _whose(one.agent),
            moment(one.created_at),
            made,
            one.parent_version or "–",
            size(one.size_bytes),
            measured or "–",
        )
    screen.out.print(table)


def _show_promotion(screen: Screen, done: "ModelVersion", *, as_json: bool) -> None:
    screen.answer(done, f"{done.version} serves {_whose(done.agent)}: {done.provenance}", as_json=as_json)


def _whose(agent: "Agent | None") -> str:
    return "all agents" if agent is None else f"{agent.task_id or '–'} / {agent.model_id or '–'}"
