# Generated from _async by generate_sync.py (make sdk). Do not edit.
"""Calls of the orchestrator: asks, audits, conversations."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, Unpack

import grpc
from google.protobuf.message import Message

from evenmesh._sync import adapter
from evenmesh._sync.calls import Calls
from evenmesh._sync.conversation import Conversation
from evenmesh.codec import audit as audit_codec
from evenmesh.codec import messages as codec
from evenmesh.codec.values import text
from evenmesh.resending import Resending
from evenmesh.types.audit import AuditEvent, audit_request
from evenmesh.types.conversation import ConversationOptions
from evenmesh.types.events import AskResult, Event
from evenmesh.types.request import AskOptions, ask_request

T = TypeVar("T")


class AskingCalls(Calls):
    """Ask questions, audit them, converse."""

    def ask(
        self, question: str, *, timeout: float | None = None, **options: Unpack[AskOptions]
    ) -> Iterator[Event]:
        """Ask one question and yield events as they happen, :class:`evenmesh.Done` last.

        Closing the iterator cancels the ask.

        Args:
            question: 1 to 8,192 bytes, not only white space.
            timeout: seconds for the whole ask.
            options: how to answer, see :class:`evenmesh.AskOptions`.

        Raises:
            MeshError: at once, if an option does not fit its field; later, if the whole ask fails.
        """
        request = ask_request(question, options)
        return self._events(self._orchestrator.Ask, request, codec.event, self._seconds(timeout))

    def answer(
        self, question: str, *, timeout: float | None = None, **options: Unpack[AskOptions]
    ) -> AskResult:
        """Ask one question and return the whole result; arguments and errors as :meth:`ask`.

        Where the connection breaks within it, as it does when an orchestrator is killed, the question is
        asked again, once. What was shown before is observed under an id of its own.
        """
        events: list[Event] = []
        stream: Iterator[Event] = self._events(
            self._orchestrator.Ask,
            ask_request(question, options),
            codec.event,
            self._seconds(timeout),
            events.clear,
        )
        for event in stream:
            events.append(event)
        return AskResult.of(question, events)

    def converse(
        self,
        *,
        conversation: ConversationOptions | None = None,
        conversation_id: str = "",
        timeout: float | None = None,
        **options: Unpack[AskOptions],
    ) -> Conversation:
        """Open a conversation: turns know of each other; their relevance and fairness are measured together.

        Nothing is sent before the first turn. Use it as a context manager, or close it.

        Args:
            conversation: how it goes, see :class:`evenmesh.ConversationOptions`.
            conversation_id: an earlier conversation to continue; options that are not given stay.
            timeout: seconds for each turn.
            options: how to answer turns, see :class:`evenmesh.AskOptions`; not ``ensemble``, ``search`` or
                ``turns``.

        Raises:
            MeshError: an option does not fit its field.
        """
        return Conversation(
            self._orchestrator,
            self._check_open,
            lambda exc: self._error(exc, "orchestrator"),
            options,
            conversation or {},
            timeout=self._seconds(timeout),
            conversation_id=text("conversation_id", conversation_id),
        )

    def audit(
        self,
        question: str,
        *,
        alphas: Sequence[float] = (),
        oracle: int | None = None,
        until_width: float | None = None,
        level: float | None = None,
        timeout: float | None = None,
        **options: Unpack[AskOptions],
    ) -> Iterator[AuditEvent]:
        """Sample rankings of one labelled query at several fairness dials and yield what each did.

        The deterministic ranking comes first, then every dial, then an oracle; reports after all samples,
        :class:`evenmesh.Done` last. Closing the iterator cancels the audit.

        Args:
            question: 1 to 8,192 bytes, not only white space.
            alphas: fairness dials, 0 to 100; 1, 2, 4 and 8 without any.
            oracle: rankings of the oracle, 0 to 1,000; as many as ``samples`` without it.
            until_width: stop sampling at a dial once the interval of its expected utility is this narrow.
            level: probability with which that interval holds, 0.95 without it.
            timeout: seconds for the whole audit.
            options: how to answer, see :class:`evenmesh.AskOptions`: ``useful`` is required, ``samples`` are
                the rankings of each dial (100 without it), and audits take no ``alpha`` and no target.

        Raises:
            MeshError: at once, if an option does not fit its field; later, if the whole audit fails.
        """
        request = audit_request(
            question, options, alphas=alphas, oracle=oracle, until_width=until_width, level=level
        )
        return self._events(self._orchestrator.Audit, request, audit_codec.event, self._seconds(timeout))

    def _events(
        self,
        method: Callable[..., Any],
        request: Message,
        read: Callable[[Any], T | None],
        timeout: float,
        forget: Callable[[], None] | None = None,
    ) -> Iterator[T]:
        """Yield the events of an ask or an audit; send it again where a server stops or starts.

        Who can ``forget`` the events so far gets all of them again where the connection breaks.
        """
        resending = Resending(timeout, whole=forget is not None)
        while True:
            self._check_open()
            call = method(request, timeout=resending.left_s)
            try:
                for message in call:
                    resending.begun = True
                    self._restarts.reached("orchestrator")
                    if (event := read(message)) is not None:
                        yield event
                return
            except adapter.INTERRUPTED:
                self._check_interrupted()
                raise
            except grpc.RpcError as exc:
                error = self._error(exc, "orchestrator")
                if not self._again(resending, error, "orchestrator", request, always=True):
                    raise error from exc
                if forget is not None:
                    forget()
            finally:
                call.cancel()
