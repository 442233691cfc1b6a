"""Conversation systems under test: the mesh, and OpenAI-compatible endpoints."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import grpc

from evenmesh import AsyncClient
from evenmesh.types.conversation import GroupTarget
from evenmesh.types.events import Answer, Ranked, Retrieved
from evenmesh.wire.errors import MeshError, Unavailable
from evenmesh_studies.conversations.plan import ConversationPlan, ConversationUnit
from evenmesh_studies.conversations.protocol import SystemTurn, next_turn
from evenmesh_studies.runner.events import collect

_RETRIED: Final = frozenset({408, 409, 425, 429})


@dataclass(frozen=True, slots=True)
class ConversationRecord:
    """A conversation that was held.

    Attributes:
        lines: transcript in the format of GFRC's figure 5, beginning with the line of the topic.
        turns: of the system.
        facts: names and versions of what held it.
    """

    lines: tuple[str, ...]
    turns: tuple[SystemTurn, ...]
    facts: Mapping[str, str] = field(default_factory=dict)


class ConversationSystem(Protocol):
    """Holds conversations."""

    async def converse(self, unit: ConversationUnit) -> ConversationRecord:
        """Hold one conversation from the beginning.

        Raises:
            MeshError: it failed; the code says whether another try may help.
        """


class MeshSystem:
    """Holds conversations with a mesh.

    Args:
        client: of the mesh.
        plan: of the conversations.
    """

    def __init__(self, client: AsyncClient, plan: ConversationPlan) -> None:
        self._client = client
        self._plan = plan

    async def converse(self, unit: ConversationUnit) -> ConversationRecord:
        """Hold one conversation; see :class:`ConversationSystem`."""
        said: list[SystemTurn] = []
        facts: dict[str, str] = {}
        conversation = self._client.converse(
            conversation=self._plan.conversation_options(),
            timeout=self._plan.timeout,
            **self._plan.ask_options(unit),
        )
        async with conversation:
            while (question := next_turn(unit.topic, said)) is not None:
                useful = unit.topic.useful[len(said)] if unit.topic.useful is not None else None
                turn = conversation.ask(question, useful=useful)
                events = await collect(turn)
                for event in events:
                    _note(facts, event)
                answer = next((event for event in events if isinstance(event, Answer)), None)
                said.append(
                    SystemTurn("", False)
                    if answer is None
                    else SystemTurn(answer.text, bool(answer.citations))
                )
            text = f"##### {unit.topic.name}\n{conversation.transcript}"
        # Not splitlines(): it also splits at characters within an answer, such as U+2028.
        return ConversationRecord(tuple(text.removesuffix("\n").split("\n")), tuple(said), facts)


class EndpointSystem:
    """Holds conversations with an OpenAI-compatible endpoint: ``POST {base}/chat/completions``.

    A line of an answer that ends with an address counts as an entity. A person has to judge its relevance and
    groups later, so it is annotated with ``?``.

    Args:
        base: base address, such as ``http://127.0.0.1:8000/v1``.
        key: sent as bearer token; empty for none.
        plan: of the conversations.
    """

    def __init__(self, base: str, key: str, plan: ConversationPlan) -> None:
        import httpx

        self._plan = plan
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.AsyncClient(base_url=base.rstrip("/") + "/", headers=headers, timeout=plan.timeout)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def converse(self, unit: ConversationUnit) -> ConversationRecord:
        """Hold one conversation; see :class:`ConversationSystem`."""
        said: list[SystemTurn] = []
        messages: list[dict[str, str]] = []
        lines = [f"##### {unit.topic.name}"]
        facts: dict[str, str] = {}
        while (question := next_turn(unit.topic, said)) is not None:
            messages.append({"role": "user", "content": question})
            reply = await self._complete(unit, messages)
            text = _content(reply)
            facts[f"model of {unit.system.name}"] = str(reply.get("model") or unit.system.model)
            messages.append({"role": "assistant", "content": text})
            turn = SystemTurn(
                text, any("://" in line.split()[-1] for line in text.split("\n") if line.strip())
            )
            said.append(turn)
            lines.extend(turn_lines(len(said), question, turn, self._plan.targets))
        return ConversationRecord(tuple(lines), tuple(said), facts)

    async def _complete(self, unit: ConversationUnit, messages: list[dict[str, str]]) -> dict[str, Any]:
        import httpx

        body: dict[str, Any] = {
            "model": unit.system.model,
            "messages": messages,
            "seed": self._plan.seed + unit.trial - 1,
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
            raise _unreadable("it is not a JSON object")
        return found


def turn_lines(number: int, question: str, said: SystemTurn, targets: Sequence[GroupTarget]) -> list[str]:
    """Return a user turn and its system turn in the format of GFRC's figure 5, to be judged by a person.

    Args:
        number: of the turn, from 1.
        question: of the user.
        said: turn of the system.
        targets: attributes to be judged.
    """
    lines = [f"### U{number}", *_escaped(question), f"### S{number} {'o' if said.useful else 'x'}"]
    for line in _escaped(said.text):
        lines.append(line)
        if "://" in line.split()[-1]:
            lines.append("#L?")
            lines.extend(f"#{target.attribute}: (?)" for target in targets)
    return lines


def _escaped(text: str) -> list[str]:
    """Return the lines that are not blank, with a backslash before those that look like a tag."""
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
        f"the endpoint's answer cannot be read: {why}",
    )
