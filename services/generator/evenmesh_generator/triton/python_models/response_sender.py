"""Send an engine's text and outcomes to callers, through Triton's response senders.

A send is a round trip to the server, a tenth of a millisecond or more, and so is the question whether the
caller has gone. The engine does neither: one thread sends, another asks.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import grpc

from evenmesh.wire.errors import MeshError
from evenmesh_generator.domain import Answer
from evenmesh_generator.ports import Cancellation, Cancelled
from evenmesh_generator.triton.python_models.backend import Backend, TritonSender, response
from evenmesh_generator.triton.tensors import Tensor, answer_tensors, error_text, texts
from evenmesh_kit.rpc.statuses import to_mesh_error

if TYPE_CHECKING:
    from evenmesh_generator.runtime.tasks import Outcome

_CODES: Final = {
    grpc.StatusCode.INVALID_ARGUMENT: "INVALID_ARG",
    grpc.StatusCode.NOT_FOUND: "NOT_FOUND",
    grpc.StatusCode.ALREADY_EXISTS: "ALREADY_EXISTS",
    grpc.StatusCode.UNIMPLEMENTED: "UNSUPPORTED",
    grpc.StatusCode.UNAVAILABLE: "UNAVAILABLE",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "UNAVAILABLE",
    grpc.StatusCode.CANCELLED: "CANCELLED",
    grpc.StatusCode.INTERNAL: "INTERNAL",
}


def sendable(error: BaseException) -> MeshError:
    """Return the error without its stack, whose frames hold requests."""
    found = to_mesh_error(error)
    found.__traceback__ = found.__context__ = found.__cause__ = None
    return found


def triton_error(backend: Backend, error: BaseException) -> object:
    """Return an error as Triton sends it, with all of it in the message."""
    found = sendable(error)
    code = getattr(backend.TritonError, _CODES.get(found.code, "UNKNOWN"))
    return backend.TritonError(error_text(found), code)


class ResponseStream:
    """Queues one request's responses. A :class:`~evenmesh_generator.runtime.tasks.Listener`.

    Text that comes while an earlier piece is being sent leaves in one piece; the first goes at once.

    Args:
        sender: the request's.
        response_sender: the thread that sends.
        version: of the model, for answers that do not name it.
        on_answer: receives the answer, if there is one.
    """

    def __init__(
        self,
        backend: Backend,
        sender: TritonSender,
        response_sender: ResponseSender,
        *,
        version: str = "",
        on_answer: Callable[[Answer], object] = lambda _: None,
    ) -> None:
        self._backend = backend
        self._version = version
        self._on_answer = on_answer
        self._sender = sender
        self._response_sender = response_sender
        self._pieces: deque[str] = deque()
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._waits = False
        self._outcome: Outcome | Mapping[str, Tensor] | None = None
        self.cancel = Cancellation()
        self.over = False

    def on_delta(self, text: str) -> None:
        """Queue more text."""
        self._pieces.append(text)
        self._announce()

    def on_end(self, outcome: Outcome) -> None:
        """Queue the answer, or the reason for its absence."""
        if isinstance(outcome, Answer):
            outcome = replace(outcome, model_version=outcome.model_version or self._version)
            self._on_answer(outcome)
        self.end(outcome)

    def end(self, outcome: Outcome | Mapping[str, Tensor]) -> None:
        """Queue the last response: an answer, an error or outputs of another kind."""
        self._outcome = outcome
        self._announce()

    def is_cancelled(self) -> bool:
        """Return whether the caller has gone; a round trip to the server."""
        # The server crashes when asked after the last response, which frees what it would look at.
        with self._sending:
            return not self.over and self._sender.is_cancelled()

    def send(self) -> None:
        """Send the queued responses."""
        with self._lock:
            self._waits = False  # before taking: text that comes from now on is announced again
        outcome = self._outcome
        text = "".join(self._pieces.popleft() for _ in range(len(self._pieces)))
        if text and not self.cancel.cancelled:
            self._sender.send(response(self._backend, {"delta": texts([text])}))
        if outcome is not None:
            final = self._backend.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            with self._sending:
                self.over = True
                self._sender.send(self._last(outcome), flags=final)

    def _last(self, outcome: Outcome | Mapping[str, Tensor]) -> object:
        match outcome:
            case Answer():
                return response(self._backend, answer_tensors(outcome))
            case Cancelled():
                gone = MeshError(grpc.StatusCode.CANCELLED, "CANCELLED", "nobody waits for the answer")
                return self._backend.InferenceResponse(error=triton_error(self._backend, gone))
            case Exception():
                return self._backend.InferenceResponse(error=triton_error(self._backend, outcome))
            case _:
                return response(self._backend, outcome)

    def _announce(self) -> None:
        with self._lock:
            if self._waits:
                return
            self._waits = True
        self._response_sender.take(self)


class ResponseSender:
    """The thread that sends, first come first served."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._waiting: queue.SimpleQueue[ResponseStream | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="response-sender", daemon=True)
        self._thread.start()

    def take(self, responses: ResponseStream) -> None:
        """Queue ``responses``, which has something to send."""
        self._waiting.put(responses)

    def close(self) -> None:
        """Send what waits, and stop."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (responses := self._waiting.get()) is not None:
            try:
                responses.send()
            except Exception as error:  # noqa: BLE001 - one request's, and the others go on
                self._backend.Logger.log_error(f"a response could not be sent: {error!r}")


class CancellationPoller:
    """The thread that asks whether callers have gone.

    Args:
        interval_s: least time between two rounds. Seconds, (0, inf).
    """

    def __init__(self, backend: Backend, interval_s: float) -> None:
        self._backend = backend
        self._interval_s = interval_s
        self._watched: set[ResponseStream] = set()
        self._lock = threading.Lock()
        self._some = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def take(self, responses: ResponseStream) -> None:
        """Watch ``responses`` until it is over."""
        with self._lock:
            self._watched.add(responses)
        self._some.set()

    def close(self) -> None:
        """Stop the thread."""
        self._closed.set()
        self._some.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.is_set():
            with self._lock:
                self._watched = {one for one in self._watched if not (one.over or one.cancel.cancelled)}
                round_ = tuple(self._watched)
                if not round_:
                    self._some.clear()
            if not round_:
                self._some.wait()
                continue
            for responses in round_:
                self._ask(responses)
            self._closed.wait(self._interval_s)

    def _ask(self, responses: ResponseStream) -> None:
        if responses.over:
            return
        try:
            if responses.is_cancelled():
                responses.cancel.cancel()
        except Exception as error:  # noqa: BLE001 - a request that ended meanwhile cannot be asked
            if not responses.over:
                self._backend.Logger.log_warn(f"a request cannot be asked whether it is cancelled: {error!r}")
