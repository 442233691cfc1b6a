"""Who is talked with: the mesh, or an OpenAI-compatible endpoint. Each holds one conversation at a time."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import grpc

from meshkit.errors import MeshError, Unavailable
from ragmesh.aio import AsyncClient
from ragmesh.conversation import GroupTarget
from ragmesh.events import Answer, Degraded, Failed, Ranked, Retrieved
from ragmesh.harvest.plan import Cell, HarvestPlan
from ragmesh.harvest.protocol import Said, next_turn
from ragmesh.patience import PASSING, PASSING_REASONS

_RETRIED: Final = frozenset({408, 409, 425, 429})


@dataclass(frozen=True, slots=True)
class Held:
    """A conversation that was held.

    Attributes:
        lines: in the format of GFRC's figure 5, the line of its topic first.
        said: its system turns.
        facts: what it was held with, by name.
    """

    lines: tuple[str, ...]
    said: tuple[Said, ...]
    facts: Mapping[str, str] = field(default_factory=dict)


class Talker(Protocol):
    """Holds conversations."""

    async def hold(self, cell: Cell) -> Held:
        """Holds one, from the beginning.

        Raises:
            MeshError: it could not be held; whether another try may help is in the code.
        """


class MeshTalker:
    """Talks with a mesh.

    Args:
        client: of the mesh.
        plan: how conversations go.
    """

    def __init__(self, client: AsyncClient, plan: HarvestPlan) -> None:
        self._client = client
        self._plan = plan

    async def hold(self, cell: Cell) -> Held:
        """See the port."""
        said: list[Said] = []
        facts: dict[str, str] = {}
        conversation = self._client.converse(
            conversation=self._plan.conversation_options(),
            timeout=self._plan.timeout,
            **self._plan.ask_options(cell),
        )
        async with conversation:
            while (question := next_turn(cell.topic, said)) is not None:
                useful = cell.topic.useful[len(said)] if cell.topic.useful is not None else None
                turn = conversation.ask(question, useful=useful)
                answer: Answer | None = None
                async with aclosing(turn) as events:  # type: ignore[type-var]  # it is a generator
                    async for event in events:
                        _note(facts, event)
                        match event:
                            case Answer() if answer is None:
                                answer = event
                            case Failed() if event.code in PASSING:
                                raise Unavailable("NO_ANSWER", event.message)
                            case Degraded() if event.stage != "observe" and event.reason in PASSING_REASONS:
                                raise Unavailable(event.reason, event.message)
                            case _:
                                pass
                said.append(Said("", False) if answer is None else Said(answer.text, bool(answer.citations)))
            text = f"##### {cell.topic.name}\n{conversation.transcript}"
        # Not splitlines, which also ends lines at characters that are part of what was said.
        return Held(tuple(text.removesuffix("\n").split("\n")), tuple(said), facts)


class EndpointTalker:
    """Talks with an OpenAI-compatible endpoint: ``POST {base}/chat/completions``.

    Lines of an answer that end with an address are taken for entities, whose relevance and groups a person
    has yet to judge: they are annotated with ``?``.

    Args:
        base: its base address, such as ``http://127.0.0.1:8000/v1``.
        key: sent as bearer token; empty for none.
        plan: how conversations go.
    """

    def __init__(self, base: str, key: str, plan: HarvestPlan) -> None:
        import httpx

        self._plan = plan
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.AsyncClient(base_url=base.rstrip("/") + "/", headers=headers, timeout=plan.timeout)

    async def close(self) -> None:
        """Closes its connections."""
        await self._http.aclose()

    async def hold(self, cell: Cell) -> Held:
        """See the port."""
        said: list[Said] = []
        messages: list[dict[str, str]] = []
        lines = [f"##### {cell.topic.name}"]
        facts: dict[str, str] = {}
        while (question := next_turn(cell.topic, said)) is not None:
            messages.append({"role": "user", "content": question})
            reply = await self._complete(cell, messages)
            text = _content(reply)
            facts[f"model of {cell.system.name}"] = str(reply.get("model") or cell.system.model)
            messages.append({"role": "assistant", "content": text})
            turn = Said(text, any("://" in line.split()[-1] for line in text.split("\n") if line.strip()))
            said.append(turn)
            lines.extend(turn_lines(len(said), question, turn, self._plan.targets))
        return Held(tuple(lines), tuple(said), facts)

    async def _complete(self, cell: Cell, messages: list[dict[str, str]]) -> dict[str, Any]:
        import httpx

        body: dict[str, Any] = {
            "model": cell.system.model,
            "messages": messages,
            "seed": self._plan.seed + cell.trial - 1,
        }
        if self._plan.temperature is not None:
            body["temperature"] = self._plan.temperature
        try:
            async with asyncio.timeout(self._plan.timeout):
                response = await self._http.post("chat/completions", json=body)
        except (httpx.HTTPError, TimeoutError) as error:
            why = str(error) or "no answer in time"
            raise Unavailable("ENDPOINT_UNAVAILABLE", f"the endpoint does not answer: {why}") from error
        if response.status_code >= 400:
            raise _refusal(response.status_code, response.text, response.headers.get("Retry-After"))
        try:
            found = response.json()
        except ValueError as error:
            raise _unreadable("it is not JSON") from error
        if not isinstance(found, dict):
            raise _unreadable("it is no JSON object")
        return found


def turn_lines(number: int, question: str, said: Said, targets: Sequence[GroupTarget]) -> list[str]:
    """A user turn and its system turn in the format of GFRC's figure 5, to be judged by a person.

    Args:
        number: of the turn, from 1.
        question: the user's words.
        said: the system's.
        targets: the attributes that are to be judged.
    """
    lines = [f"### U{number}", *_escaped(question), f"### S{number} {'o' if said.useful else 'x'}"]
    for line in _escaped(said.text):
        lines.append(line)
        if "://" in line.split()[-1]:
            lines.append("#L?")
            lines.extend(f"#{target.attribute}: (?)" for target in targets)
    return lines


def _escaped(text: str) -> list[str]:
    """Lines with words, those that would be taken for a tag with a backslash before them."""
    found = [line.strip() for line in text.split("\n")]
    return [f"\\{line}" if line.startswith("#") else line for line in found if line]


def _note(facts: dict[str, str], event: object) -> None:
    match event:
        case Retrieved():
            facts["retriever"] = event.retriever
            facts["index"] = event.index_version
        case Ranked():
            facts["reranker"] = f"{event.reranker} {event.model_version}".strip()
        case Answer():
            facts[f"version of {event.model}"] = event.model_version
        case _:
            pass


def _content(reply: dict[str, Any]) -> str:
    try:
        content = reply["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError) as error:
        raise _unreadable("it has no choices[0].message.content") from error
    return content if isinstance(content, str) else ""


def _refusal(status: int, text: str, retry_after: str | None) -> MeshError:
    words = " ".join(text.split())[:200]
    message = f"the endpoint answers {status}: {words}"
    if status in _RETRIED or status >= 500:
        pause = float(retry_after) if retry_after and retry_after.isdigit() else None
        return MeshError(grpc.StatusCode.UNAVAILABLE, "ENDPOINT_UNAVAILABLE", message, retry_after_s=pause)
    return MeshError(grpc.StatusCode.FAILED_PRECONDITION, "ENDPOINT_REFUSED", message)


def _unreadable(why: str) -> MeshError:
    return MeshError(
        grpc.StatusCode.FAILED_PRECONDITION,
        "ENDPOINT_UNREADABLE",
        f"the endpoint's answer is of no use: {why}",
    )
