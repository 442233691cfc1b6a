"""Wait for services that are being restarted."""

from typing import Final

from evenmesh._async import adapter
from evenmesh.resending import BROKEN, LEAST_S, Resending
from evenmesh.wire.errors import MeshError

_LOOK_S: Final = 1.0
"""Time after which a call that waits for a connection looks whether its client was closed. Seconds."""


class AsyncRestarts:
    """Decides for the calls of one client whether a failed one may be sent again, and waits until then.

    Where the client has reached the service before, the service is being restarted. The call then waits,
    without being sent, until the channel is connected again or no time is left.
    """

    def __init__(self) -> None:
        self._reached: set[str] = set()
        self._closed = False

    @property
    def closed(self) -> bool:
        """Return whether the client was closed."""
        return self._closed

    def reached(self, service: str) -> None:
        """Note that a service answered."""
        self._reached.add(service)

    def close(self) -> None:
        """End all waits: the channels are about to be closed."""
        self._closed = True

    def allows(
        self, resending: Resending, error: MeshError, service: str, *, retryable: bool, always: bool = False
    ) -> bool:
        """Return whether a failed call may be sent again, after :meth:`wait`.

        Args:
            resending: the attempts so far.
            error: how the last one failed.
            service: short name of the service.
            retryable: whether the contract says so of the method.
            always: whether the call may be sent again although it is not ``retryable``, and to a service that
                was never reached; gRPC has sent other calls several times already.
        """
        patient = service in self._reached
        return (always or (patient and retryable)) and resending.allows(error, patient=patient)

    async def wait(
        self, resending: Resending, error: MeshError, service: str, channel: adapter.Channel
    ) -> bool:
        """Wait until it is time to send a call again; return False if no time is left or the client closed.

        Args:
            resending: the attempts so far, which allow another one.
            error: how the last one failed.
            service: short name of the service.
            channel: connects to it.
        """
        await adapter.sleep(0.0 if self._closed else resending.pause_s)
        waits = error.reason == BROKEN and service in self._reached
        while waits and not self._closed and resending.left_s > LEAST_S:
            waits = not await adapter.until_ready(channel, min(_LOOK_S, resending.left_s))
        return not (waits or self._closed)
