"""The client of a mesh."""

from evenmesh._async.asking import AsyncAskingCalls
from evenmesh._async.feedback import AsyncFeedbackCalls
from evenmesh._async.ingesting import AsyncIngestCalls
from evenmesh._async.measures import AsyncMeasureCalls
from evenmesh._async.reports import AsyncReportCalls
from evenmesh._async.reranking import AsyncRerankCalls
from evenmesh._async.retrieval import AsyncRetrievalCalls


class AsyncClient(
    AsyncAskingCalls,
    AsyncIngestCalls,
    AsyncRetrievalCalls,
    AsyncRerankCalls,
    AsyncReportCalls,
    AsyncMeasureCalls,
    AsyncFeedbackCalls,
):
    """Asks questions of a mesh, measures answers and manages collections.

    An :class:`evenmesh.AsyncClient` belongs to one event loop; threads may share an :class:`evenmesh.Client`.

    Every method raises :class:`evenmesh.MeshError` when a call fails: ``reason`` for programs, the ``field``
    at fault, ``retry_after_s`` when a retry may help.

    Args:
        addresses: where the services are, or only the orchestrator's ``host:port``. Default: the mesh that
            runs on this machine, see :meth:`evenmesh.Addresses.find`.
        timeout: seconds a call may take when it is not given its own.
    """
