"""Conversations of the clients: one stream each, opened again where it broke."""

import asyncio
import queue
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Self

import grpc

from meshkit.deadline import LONGEST_BUDGET_S
from meshkit.errors import MeshError, Unavailable, from_item_error
from ragmesh import conversation_codec as codec
from ragmesh.conversation import ConversationOptions, TurnEvent, TurnResult
from ragmesh.orchestrator.v1 import orchestrator_service_pb2 as orchestrator_pb2
from ragmesh.request import AskOptions, ask_request

CUT_OFF: Final = "CUT_OFF"
BUSY: Final = "CONVERSATION_BUSY"
_BUSY_TRIES: Final = 50
_BUSY_PAUSE_S: Final = 0.1
# A stream that brought no deadline would have that of a single call. Turns have their own; how long a stream
# may live, and be idle, is the orchestrator's to say.
_STREAM_S: Final = LONGEST_BUDGET_S

Error = Callable[[grpc.RpcError], MeshError]


class _Thread:
    """What both kinds of conversation know: how turns are asked, and where the conversation is."""

    def __init__(
        self,
        options: AskOptions,
        conversation: ConversationOptions,
        *,
        timeout: float,
        conversation_id: str,
    ) -> None:
        # Refuses at once what makes no sense.
        ask_request("", options)
        codec.options_message(conversation)
        self._options, self._conversation = options, conversation
        self._timeout = timeout
        self._unsaid = not conversation_id
        self._new_options = not conversation_id or bool(conversation)
        self.id = conversation_id
        self.turn = 0
        self.transcript = ""

    @property
    def conversation(self) -> ConversationOptions:
        """How the conversation goes."""
        return self._conversation

    def set(self, **conversation: Any) -> None:
        """Changes how the conversation goes from the next turn on, the turns so far measured likewise.

        Args:
            conversation: the fields of :class:`ragmesh.ConversationOptions` that change.

        Raises:
            MeshError: an option makes no sense.
        """
        changed: ConversationOptions = {**self._conversation, **conversation}  # type: ignore[typeddict-item]  # checked next
        codec.options_message(changed)
        self._conversation, self._new_options = changed, True

    def _request(
        self, question: str, timeout: float | None, about: AskOptions
    ) -> orchestrator_pb2.ConverseRequest:
        options: AskOptions = {**(self._options if self._unsaid else {}), **about}
        request = orchestrator_pb2.ConverseRequest(
            ask=ask_request(question, options),
            conversation_id=self.id,
            timeout_ms=max(1, round(1000 * (timeout or self._timeout))),
        )
        if self._new_options:
            request.options.CopyFrom(codec.options_message(self._conversation))
        return request

    def _take(self, message: orchestrator_pb2.ConverseResponse) -> TurnEvent | None:
        """The event of a message.

        Raises:
            MeshError: the turn failed.
        """
        self.id = message.conversation_id
        if message.HasField("failed"):
            raise from_item_error(message.failed.error)
        # How to answer is kept by the mesh once a turn has got anywhere.
        self._unsaid = self._new_options = False
        if message.event.HasField("done"):
            self.turn, self.transcript = message.turn, message.transcript
        return codec.event(message)

    def _begin_anew(self) -> None:
        self.id, self.turn, self.transcript = "", 0, ""
        self._unsaid = self._new_options = True


def _about(
    useful: Sequence[str] | None, references: Sequence[str] | None, query_id: str | None
) -> AskOptions:
    return {"useful": useful, "references": references, "query_id": query_id}


def _over(message: orchestrator_pb2.ConverseResponse) -> bool:
    return message.HasField("failed") or message.event.HasField("done")


def _cut_off() -> MeshError:
    return Unavailable(CUT_OFF, "the orchestrator ended the conversation's stream")


class Conversation(_Thread):
    """A conversation of a :class:`ragmesh.Client`; one turn at a time, from one thread at a time.

    Made by :meth:`ragmesh.Client.converse`. ``id`` is empty before the first turn, ``turn`` the number of the
    last one that ended well, ``transcript`` all of them in the format of GFRC's figure 5.
    """

    def __init__(
        self,
        stub: Any,
        error: Error,
        options: AskOptions,
        conversation: ConversationOptions,
        *,
        timeout: float,
        conversation_id: str,
    ) -> None:
        super().__init__(options, conversation, timeout=timeout, conversation_id=conversation_id)
        self._stub, self._error = stub, error
        self._call: Any = None
        self._outgoing: queue.SimpleQueue[orchestrator_pb2.ConverseRequest | None] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def ask(
        self,
        question: str,
        *,
        timeout: float | None = None,
        useful: Sequence[str] | None = None,
        references: Sequence[str] | None = None,
        query_id: str | None = None,
    ) -> Iterator[TurnEvent]:
        """Takes one turn and yields what happens as it happens, :class:`ragmesh.Done` last.

        Closing the iterator, or an exception in its loop, cancels the turn: the conversation goes on without
        it.

        Args:
            question: 1 to 8,192 bytes, not only white space.
            timeout: seconds for the turn.
            useful: ids of the useful passages; without it everything that is cited counts as relevant.
            references: right answers.
            query_id: query id within the run.

        Raises:
            MeshError: while iterating, if the turn fails; the next one may be asked all the same.
        """
        request = self._request(question, timeout, _about(useful, references, query_id))
        return self._events(request)

    def answer(
        self,
        question: str,
        *,
        timeout: float | None = None,
        useful: Sequence[str] | None = None,
        references: Sequence[str] | None = None,
        query_id: str | None = None,
    ) -> TurnResult:
        """Takes one turn and waits for all of it; arguments and errors as :meth:`ask`."""
        events = list(
            self.ask(question, timeout=timeout, useful=useful, references=references, query_id=query_id)
        )
        return TurnResult.of(
            question, events, conversation_id=self.id, turn=self.turn, transcript=self.transcript
        )

    def reset(self) -> None:
        """Begins anew: the next turn is the first of another conversation, asked in the same way."""
        self.close()
        self._begin_anew()

    def close(self) -> None:
        """Ends the stream; the conversation can be gone on with by its id until its lifetime is over."""
        if self._call is not None:
            self._call.cancel()
            self._drop()

    def _events(self, request: orchestrator_pb2.ConverseRequest) -> Iterator[TurnEvent]:
        first = self._first(request)
        over = False
        try:
            message = first
            while True:
                over = _over(message)
                event = self._take(message)
                if event is not None:
                    yield event
                if over:
                    return
                message = self._read()
        finally:
            if not over and self._call is not None:
                self._cancel_turn()

    def _first(self, request: orchestrator_pb2.ConverseRequest) -> orchestrator_pb2.ConverseResponse:
        """The first message of a turn; where the stream that had the conversation ends only now, waits."""
        for tries in range(_BUSY_TRIES):
            opened = self._call is None
            if opened:
                self._open()
            self._outgoing.put(request)
            try:
                return self._read()
            except MeshError as error:
                if error.reason == CUT_OFF and not opened:
                    continue  # the stream ended between two turns, as one does that was idle for long
                if error.reason != BUSY or not opened or tries == _BUSY_TRIES - 1:
                    raise
            time.sleep(_BUSY_PAUSE_S)
        raise AssertionError("the last try returns or raises")

    def _open(self) -> None:
        outgoing = self._outgoing = queue.SimpleQueue()
        self._call = self._stub.Converse(iter(outgoing.get, None), timeout=_STREAM_S)

    def _read(self) -> orchestrator_pb2.ConverseResponse:
        try:
            message: orchestrator_pb2.ConverseResponse = next(self._call)
        except StopIteration:
            self._drop()
            raise _cut_off() from None
        except grpc.RpcError as exc:
            self._drop()
            raise self._error(exc) from exc
        except KeyboardInterrupt:
            # The read goes on without us, and gRPC takes no other one in this call.
            self.close()
            raise
        return message

    def _drop(self) -> None:
        """Lets go of the stream, and of the thread that waits for what to send in it."""
        self._outgoing.put(None)
        self._call = None

    def _cancel_turn(self) -> None:
        """Cancels the turn under way and reads what is left of it."""
        self._outgoing.put(orchestrator_pb2.ConverseRequest(cancel=True))
        try:
            while not _over(message := self._read()):
                pass
            if message.event.HasField("done"):
                self._take(message)
        except MeshError:
            # The stream is gone, and with it the turn: the next one opens another.
            return


class AsyncConversation(_Thread):
    """:class:`Conversation` for an event loop, of a :class:`ragmesh.AsyncClient`."""

    def __init__(
        self,
        stub: Any,
        error: Error,
        options: AskOptions,
        conversation: ConversationOptions,
        *,
        timeout: float,
        conversation_id: str,
    ) -> None:
        super().__init__(options, conversation, timeout=timeout, conversation_id=conversation_id)
        self._stub, self._error = stub, error
        self._call: Any = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def ask(
        self,
        question: str,
        *,
        timeout: float | None = None,
        useful: Sequence[str] | None = None,
        references: Sequence[str] | None = None,
        query_id: str | None = None,
    ) -> AsyncIterator[TurnEvent]:
        """Takes one turn and yields what happens as it happens; as :meth:`Conversation.ask`.

        Closing the iterator cancels the turn. Cancelling the task that waits for it ends the stream; the
        next turn opens another.
        """
        request = self._request(question, timeout, _about(useful, references, query_id))
        return self._events(request)

    async def answer(
        self,
        question: str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the turn's own, sent along with it
        useful: Sequence[str] | None = None,
        references: Sequence[str] | None = None,
        query_id: str | None = None,
    ) -> TurnResult:
        """Takes one turn and waits for all of it; arguments and errors as :meth:`Conversation.ask`."""
        turn = self.ask(question, timeout=timeout, useful=useful, references=references, query_id=query_id)
        events = [event async for event in turn]
        return TurnResult.of(
            question, events, conversation_id=self.id, turn=self.turn, transcript=self.transcript
        )

    def reset(self) -> None:
        """Begins anew: the next turn is the first of another conversation, asked in the same way."""
        self.close()
        self._begin_anew()

    def close(self) -> None:
        """Ends the stream; the conversation can be gone on with by its id until its lifetime is over."""
        if self._call is not None:
            self._call.cancel()
            self._call = None

    async def _events(self, request: orchestrator_pb2.ConverseRequest) -> AsyncIterator[TurnEvent]:
        over = False
        try:
            message = await self._first(request)
            while True:
                over = _over(message)
                event = self._take(message)
                if event is not None:
                    yield event
                if over:
                    return
                message = await self._read()
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            if not over and self._call is not None:
                await self._cancel_turn()

    async def _first(self, request: orchestrator_pb2.ConverseRequest) -> orchestrator_pb2.ConverseResponse:
        for tries in range(_BUSY_TRIES):
            opened = self._call is None
            if opened:
                self._call = self._stub.Converse(timeout=_STREAM_S)
            try:
                await self._write(request)
                return await self._read()
            except MeshError as error:
                if error.reason == CUT_OFF and not opened:
                    continue  # the stream ended between two turns, as one does that was idle for long
                if error.reason != BUSY or not opened or tries == _BUSY_TRIES - 1:
                    raise
            await asyncio.sleep(_BUSY_PAUSE_S)
        raise AssertionError("the last try returns or raises")

    async def _write(self, request: orchestrator_pb2.ConverseRequest) -> None:
        try:
            await self._call.write(request)
        except asyncio.InvalidStateError:
            # The call is over already; reading says why.
            return
        except grpc.RpcError as exc:
            self._call = None
            raise self._error(exc) from exc

    async def _read(self) -> orchestrator_pb2.ConverseResponse:
        try:
            message: Any = await self._call.read()
        except grpc.RpcError as exc:
            self._call = None
            raise self._error(exc) from exc
        if message is grpc.aio.EOF:
            self._call = None
            raise _cut_off()
        return message  # type: ignore[no-any-return]

    async def _cancel_turn(self) -> None:
        try:
            await self._write(orchestrator_pb2.ConverseRequest(cancel=True))
            while not _over(message := await self._read()):
                pass
            if message.event.HasField("done"):
                self._take(message)
        except MeshError:
            # The stream is gone, and with it the turn: the next one opens another.
            return
