"""Take uploads of documents: ``POST /v1/collections/{collection}/documents``."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response

from evenmesh.wire import checks
from evenmesh.wire.errors import Unimplemented
from evenmesh_gateway.calls import CallReader, peer_of
from evenmesh_gateway.forwarding import Forwarder
from evenmesh_gateway.http.bodies import check_head
from evenmesh_gateway.http.web import GatewayRoute
from evenmesh_gateway.methods import public_methods
from evenmesh_gateway.settings import GatewaySettings
from evenmesh_kit.admission.queue import Admission

if TYPE_CHECKING:
    from evenmesh_gateway.uploads.work import Uploads

PATH: Final = "/v1/collections/{collection}/documents"
INGEST: Final = "/evenmesh.retriever.v1.CollectionService/Ingest"
FORM: Final = "multipart/form-data"
DEFAULT_S: Final = 3600.0
"""Time of an upload whose client gives none, as of an ingest of the SDK. Seconds."""


class UploadRoutes:
    """Takes uploads; without ``evenmesh-gateway[documents]`` it says what is missing.

    Args:
        settings: bounds.
        call_reader: reads who calls.
        forwarder: makes the calls.

    Raises:
        ServerStartError: the folder of uploads cannot be made.
    """

    def __init__(self, settings: GatewaySettings, call_reader: CallReader, forwarder: Forwarder) -> None:
        self._settings = settings
        self._call_reader = call_reader
        self._uploads: Uploads | None = None
        if all(find_spec(one) is not None for one in ("evenmesh_documents", "python_multipart")):
            from evenmesh_gateway.uploads.work import Uploads

            self._uploads = Uploads(settings, forwarder)

    @property
    def reads(self) -> bool:
        """Return whether documents are read here."""
        return self._uploads is not None

    @property
    def admissions(self) -> Sequence[Admission]:
        """Return what admits uploads."""
        return () if self._uploads is None else self._uploads.admissions

    def routes(self) -> list[GatewayRoute]:
        """Return the route."""
        return [GatewayRoute(PATH, self._answer, methods=["POST"], name="documents", passes=True)]

    async def close(self) -> None:
        """Remove what is kept of uploads."""
        if self._uploads is not None:
            await self._uploads.close()

    async def _answer(self, request: Request) -> Response:
        call = await self._call_reader.call(
            request.headers, public_methods()[INGEST], peer=peer_of(request), default_s=DEFAULT_S
        )
        if self._uploads is None:
            raise Unimplemented(
                "this gateway does not read documents: install evenmesh-gateway[documents] beside it"
            )
        check_head(request, self._settings.documents_bytes, FORM)
        collection = checks.name("collection", request.path_params["collection"])
        return await self._uploads.answer(request, collection, call)
