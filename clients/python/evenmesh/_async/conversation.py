"""Conversations: one stream each, opened again where it broke."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, Self

import grpc

from evenmesh._async import adapter
from evenmesh._async.calls import checked_timeout
from evenmesh.codec import conversation as codec
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as orchestrator_pb2
from evenmesh.types.conversation import ConversationOptions, TurnEvent, TurnResult
from evenmesh.types.request import AskOptions, ask_request
from evenmesh.wire.deadline import LONGEST_BUDGET_S
from evenmesh.wire.errors import MeshError, Unavailable, from_item_error

CUT_OFF: Final = "CUT_OFF"
BUSY: Final = "CONVERSATION_BUSY"
_OF_THE_TURN: Final[AskOptions] = {"useful": None, "references": None, "query_id": None}
"""Options that each turn has of its own."""
_BUSY_TRIES: Final = 50
_BUSY_PAUSE_S: Final = 0.1
# Without a deadline of its own a stream would get that of a single call. Turns have theirs; how long a stream
# may live, and be idle, is up to the orchestrator.
_STREAM_S: Final = LONGEST_BUDGET_S


class AsyncConversation:
    """A conversation, made by :meth:`evenmesh.AsyncClient.converse`; take one turn at a time.

    Attributes:
        id: empty before the first turn.
        turn: number of the last turn that ended well, from 1; 0 before the first.
        transcript: the turns in the format of GFRC's figure 5.
    """

    def __init__(
        self,
        stub: Any,
        check_open: Callable[[], None],
        error: Callable[[grpc.RpcError], MeshError],
        options: AskOptions,
        conversation: ConversationOptions,
        *,
        timeout: float,
        conversation_id: str,
    ) -> None:
        # Raise for wrong options before the first turn.
        self._settings = ask_request("", {**options, **_OF_THE_TURN})
        codec.options_message(conversation)
        self._conversation = self._sent = conversation
        self._timeout = timeout
        self._continues = bool(conversation_id)
        self._send_options = not conversation_id
        self._send_conversation = not conversation_id or bool(conversation)
        self._stub, self._check_open, self._error = stub, check_open, error
        self._stream: adapter.Stream | None = None
        self._running: object | None = None
        self.id = conversation_id
        self.turn = 0
        self.transcript = ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    @property
    def conversation(self) -> ConversationOptions:
        """Return how the conversation goes."""
        return self._conversation

    def set(self, **conversation: Any) -> None:
        """Change options from the next turn on; earlier turns are measured again.

        Args:
            conversation: the fields of :class:`evenmesh.ConversationOptions` that change.

        Raises:
            MeshError: an option does not fit its field.
        """
        changed: ConversationOptions = {**self._conversation, **conversation}  # type: ignore[typeddict-item]  # checked next
        codec.options_message(changed)
        self._conversation, self._send_conversation = changed, True

    def ask(
        self,
        question: str,
        *,
        timeout: float | None = None,
        useful: Sequence[str] | None = None,
        references: Sequence[str] | None = None,
        query_id: str | None = None,
    ) -> AsyncIterator[TurnEvent]:
        """Take one turn and yield events as they happen, :class:`evenmesh.Done` last.

        Closing the iterator, or an exception in its loop, cancels the turn; the conversation continues
        without it. An interrupted wait (cancelled task, Ctrl-C) ends the stream; the next turn opens one.

        Args:
            question: 1 to 8,192 bytes, not only white space.
            timeout: seconds for the turn.
            useful: ids of the useful passages; without it everything that is cited counts as relevant.
            references: right answers.
            query_id: query id within the run.

        Raises:
            MeshError: while iterating, if the turn fails; the next turn may be taken all the same.
        """
        about: AskOptions = {"useful": useful, "references": references, "query_id": query_id}
        turn = orchestrator_pb2.ConverseRequest(
            ask=ask_request(question, about),
            timeout_ms=max(1, round(1000 * (self._timeout if timeout is None else checked_timeout(timeout)))),
        )
        return self._events(turn)

    async def answer(
        self,
        question: str,
        *,
        timeout: float | None = None,
        useful: Sequence[str] | None = None,
        references: Sequence[str] | None = None,
        query_id: str | None = None,
    ) -> TurnResult:
        """Take one turn and return its result; arguments and errors as :meth:`ask`."""
        turn = self.ask(question, timeout=timeout, useful=useful, references=references, query_id=query_id)
        events = [event async for event in turn]
        return TurnResult.of(
            question, events, conversation_id=self.id, turn=self.turn, transcript=self.transcript
        )

    def reset(self) -> None:
        """Begin another conversation with the same options at the next turn."""
        self.close()
        self.id, self.turn, self.transcript, self._continues = "", 0, "", False
        self._send_options = self._send_conversation = True

    def close(self) -> None:
        """End the stream; its id continues the conversation until the conversation's lifetime is over."""
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None
            if not (self.turn or self._continues):
                # The mesh keeps no conversation without a turn: the next one begins another.
                self.id, self._send_options, self._send_conversation = "", True, True

    async def _events(self, asked: orchestrator_pb2.ConverseRequest) -> AsyncIterator[TurnEvent]:
        over, turn = False, object()
        if self._running is not None:
            # Whoever left its loop early has not closed its iterator yet, as asyncio does later: what it has
            # not read would be taken for events of this turn.
            self.close()
        self._running = turn
        try:
            message = await self._first(asked)
            while True:
                over = _is_last(message)
                event = self._event(message)
                if over:
                    self._running = None
                if event is not None:
                    yield event
                if over:
                    return
                if self._running is not turn:
                    raise Unavailable(
                        "TURN_CANCELLED", "another turn began before this one was read to its end"
                    )
                message = await self._read()
        except adapter.INTERRUPTED:
            if self._running is turn:
                self.close()
            raise
        finally:
            if self._running is turn:
                if not over and self._stream is not None:
                    await self._cancel_turn()
                self._running = None

    def _request(self, asked: orchestrator_pb2.ConverseRequest) -> orchestrator_pb2.ConverseRequest:
        """Return a turn with what the mesh does not have yet: how to answer, how the conversation goes."""
        request = orchestrator_pb2.ConverseRequest(conversation_id=self.id)
        if self._send_options:
            request.ask.CopyFrom(self._settings)
        if self._send_conversation:
            request.options.CopyFrom(codec.options_message(self._conversation))
        self._sent = self._conversation
        request.MergeFrom(asked)
        return request

    async def _first(self, asked: orchestrator_pb2.ConverseRequest) -> orchestrator_pb2.ConverseResponse:
        """Return the first message of a turn; wait while an earlier stream still has the conversation."""
        for tries in range(_BUSY_TRIES):
            opened = self._stream is None
            try:
                await self._write(self._request(asked))
                return await self._read()
            except MeshError as error:
                if error.reason == CUT_OFF and not opened:
                    continue  # the stream ended between two turns, as it does after a long pause
                if error.reason != BUSY or not opened or tries == _BUSY_TRIES - 1:
                    raise
            await adapter.sleep(_BUSY_PAUSE_S)
        raise AssertionError("the last try returns or raises")

    async def _write(self, request: orchestrator_pb2.ConverseRequest) -> None:
        if self._stream is None:
            self._check_open()
            self._stream = adapter.Stream(self._stub.Converse, _STREAM_S)
        await self._stream.write(request)

    async def _read(self) -> orchestrator_pb2.ConverseResponse:
        if self._stream is None:
            raise AssertionError("a turn is read from an open stream")
        try:
            message: orchestrator_pb2.ConverseResponse | None = await self._stream.read()
        except grpc.RpcError as exc:
            self.close()
            raise self._error(exc) from exc
        except adapter.INTERRUPTED:
            # The read continues without us, and gRPC takes no other one in this call.
            self.close()
            if not adapter.is_interrupted():
                self._check_open()
            raise
        if message is None:
            self.close()
            raise Unavailable(CUT_OFF, "the orchestrator ended the conversation's stream")
        return message

    async def _cancel_turn(self) -> None:
        """Cancel the turn in progress and read the rest of it."""
        try:
            await self._write(orchestrator_pb2.ConverseRequest(cancel=True))
            while not _is_last(message := await self._read()):
                pass
            if message.event.HasField("done"):
                self._event(message)
        except MeshError:
            # The stream is gone, and with it the turn; the next turn opens another.
            return

    def _event(self, message: orchestrator_pb2.ConverseResponse) -> TurnEvent | None:
        """Return the event of a message.

        Raises:
            MeshError: the turn failed.
        """
        self.id = message.conversation_id
        if message.HasField("failed"):
            raise from_item_error(message.failed.error)
        # The mesh keeps the options once a turn has begun.
        self._send_options = False
        self._send_conversation = self._send_conversation and self._conversation is not self._sent
        if message.event.HasField("done"):
            self.turn, self.transcript = message.turn, message.transcript
        return codec.event(message)


def _is_last(message: orchestrator_pb2.ConverseResponse) -> bool:
    return message.HasField("failed") or message.event.HasField("done")
