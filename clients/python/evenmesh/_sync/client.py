# Generated from _async by generate_sync.py (make sdk). Do not edit.
"""The client of a mesh."""

from evenmesh._sync.asking import AskingCalls
from evenmesh._sync.feedback import FeedbackCalls
from evenmesh._sync.ingesting import IngestCalls
from evenmesh._sync.measures import MeasureCalls
from evenmesh._sync.reports import ReportCalls
from evenmesh._sync.reranking import RerankCalls
from evenmesh._sync.retrieval import RetrievalCalls


class Client(
    AskingCalls,
    IngestCalls,
    RetrievalCalls,
    RerankCalls,
    ReportCalls,
    MeasureCalls,
    FeedbackCalls,
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
