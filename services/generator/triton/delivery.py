"""Bringing what an engine says to who asked, through Triton's response senders.

A send is a round trip to the server, a tenth of a millisecond or more, and so is the question whether the
caller has gone. Neither is the engine's business: one thread sends, another asks.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import grpc

from meshkit.errors import MeshError, to_mesh_error
from services.generator.domain import Answer
from services.generator.ports import Cancellation, Cancelled
from services.generator.triton.backend import Backend, ResponseSender, response
from services.generator.triton.tensors import Tensor, answer_tensors, error_text, texts

if TYPE_CHECKING:
    from services.generator.runtime.engine import Outcome

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


def told(error: BaseException) -> MeshError:
    """The error as it is told, without the stack it came from, whose frames hold requests."""
    found = to_mesh_error(error)
    found.__traceback__ = found.__context__ = found.__cause__ = None
    return found


def triton_error(backend: Backend, error: BaseException) -> object:
    """An error as Triton sends it, all of it in its message."""
    found = told(error)
    code = getattr(backend.TritonError, _CODES.get(found.code, "UNKNOWN"))
    return backend.TritonError(error_text(found), code)


class Delivery:
    """One request's answer on its way. A :class:`~services.generator.runtime.engine.Listener`.

    Text that comes while an earlier piece is being sent leaves in one piece; the first goes at once.

    Args:
        sender: the request's.
        postman: who sends.
        version: of the model, for answers that do not name it.
        on_answer: hears of the answer, if there is one.
    """

    def __init__(
        self,
        backend: Backend,
        sender: ResponseSender,
        postman: Postman,
        *,
        version: str = "",
        on_answer: Callable[[Answer], object] = lambda _: None,
    ) -> None:
        self._backend = backend
        self._version = version
        self._on_answer = on_answer
        self._sender = sender
        self._postman = postman
        self._pieces: deque[str] = deque()
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._waits = False
        self._outcome: Outcome | Mapping[str, Tensor] | None = None
        self.cancel = Cancellation()
        self.over = False

    def on_delta(self, text: str) -> None:
        """More text."""
        self._pieces.append(text)
        self._announce()

    def on_end(self, outcome: Outcome) -> None:
        """The answer, or why there is none."""
        if isinstance(outcome, Answer):
            outcome = replace(outcome, model_version=outcome.model_version or self._version)
            self._on_answer(outcome)
        self.end(outcome)

    def end(self, outcome: Outcome | Mapping[str, Tensor]) -> None:
        """The last response: an answer, an error or outputs of another kind."""
        self._outcome = outcome
        self._announce()

    def is_cancelled(self) -> bool:
        """Whether the caller has gone; a round trip to the server."""
        # The server crashes when asked after the last response, which frees what it would look at.
        with self._sending:
            return not self.over and self._sender.is_cancelled()

    def send(self) -> None:
        """Sends what there is."""
        with self._lock:
            self._waits = False  # before taking: what comes from now on is announced again
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
        self._postman.take(self)


class Postman:
    """The thread that sends, first come first served."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._waiting: queue.SimpleQueue[Delivery | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="postman", daemon=True)
        self._thread.start()

    def take(self, delivery: Delivery) -> None:
        """Has something to send of ``delivery``."""
        self._waiting.put(delivery)

    def close(self) -> None:
        """Sends what waits and ends."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (delivery := self._waiting.get()) is not None:
            try:
                delivery.send()
            except Exception as error:  # noqa: BLE001 - one request's, and the others go on
                self._backend.Logger.log_error(f"a response could not be sent: {error!r}")


class Watch:
    """The thread that asks whether callers have gone.

    Args:
        interval_s: least time between two rounds. Seconds, (0, inf).
    """

    def __init__(self, backend: Backend, interval_s: float) -> None:
        self._backend = backend
        self._interval_s = interval_s
        self._watched: set[Delivery] = set()
        self._lock = threading.Lock()
        self._some = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def take(self, delivery: Delivery) -> None:
        """Watches ``delivery`` until it is over."""
        with self._lock:
            self._watched.add(delivery)
        self._some.set()

    @property
    def watched(self) -> int:
        """Requests being watched."""
        with self._lock:
            return len(self._watched)

    def close(self) -> None:
        """Ends."""
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
            for delivery in round_:
                self._ask(delivery)
            self._closed.wait(self._interval_s)

    def _ask(self, delivery: Delivery) -> None:
        if delivery.over:
            return
        try:
            if delivery.is_cancelled():
                delivery.cancel.cancel()
        except Exception as error:  # noqa: BLE001 - a request that ended meanwhile cannot be asked
            if not delivery.over:
                self._backend.Logger.log_warn(f"a request cannot be asked whether it is cancelled: {error!r}")
