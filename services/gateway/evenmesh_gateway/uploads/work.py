"""One upload: admit it, keep its files, have them read, ingest their passages, and say what was done."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any, Final

from google.protobuf import json_format
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from evenmesh.retriever.v1 import collection_service_pb2 as pb
from evenmesh.wire.errors import DeadlineExceeded, MeshError
from evenmesh_documents.uploads.process import GatheringJob, default_size
from evenmesh_gateway.calls import Call, unless_hung_up
from evenmesh_gateway.forwarding import Forwarder
from evenmesh_gateway.http import events
from evenmesh_gateway.http.problems import HttpProblem, problem_of
from evenmesh_gateway.methods import PublicMethod, public_methods
from evenmesh_gateway.settings import GatewaySettings
from evenmesh_gateway.uploads.form import FormFile, boundary_of, received
from evenmesh_gateway.uploads.options import UploadOptions, options_of
from evenmesh_gateway.uploads.reader import UploadReader
from evenmesh_gateway.uploads.scratch import ScratchFolder
from evenmesh_kit.admission.queue import Admission
from evenmesh_kit.process.start import ServerStartError
from evenmesh_kit.rpc.statuses import to_mesh_error
from evenmesh_kit.settings import variable

NOTHING_READ: Final = 422
"""Status of an upload of which no passage was read."""

_SERVICE: Final = "/evenmesh.retriever.v1.CollectionService"
_SAYS_EVERY_S: Final = 0.5
"""How often progress is stated. Seconds."""


class Uploads:
    """Takes uploads, so many at a time, and by tenant.

    Args:
        settings: bounds.
        forwarder: makes the calls.

    Attributes:
        admissions: what admits uploads, by their number and by their room on disk.

    Raises:
        ServerStartError: the folder of uploads cannot be made.
    """

    def __init__(self, settings: GatewaySettings, forwarder: Forwarder) -> None:
        self._settings = settings
        self._forwarder = forwarder
        self._releasing: set[asyncio.Task[None]] = set()
        share, queue_s = settings.tenant_share, settings.queue_s
        self._places = Admission(settings.documents_uploads, "uploads", queue_s=queue_s, share=share)
        self._disk = Admission(
            settings.documents_disk_bytes, "bytes of uploads", queue_s=queue_s, share=share
        )
        self.admissions = (self._places, self._disk)
        try:
            self._scratch = ScratchFolder(settings.documents_folder or Path(tempfile.gettempdir()))
        except OSError as error:
            name = variable(settings, "documents_folder")
            raise ServerStartError(
                f"no folder for uploads can be made: {error.strerror}: set {name}"
            ) from None

    async def close(self) -> None:
        """Wait for what ends, and remove what is kept of uploads."""
        await asyncio.gather(*self._releasing, return_exceptions=True)
        await asyncio.to_thread(self._scratch.close)

    async def answer(self, request: Request, collection: str, call: Call) -> Response:
        """Answer an upload whose body has not been read: with events where the client takes them.

        Raises:
            HttpProblem: it is too large, or nothing of it can be read.
            MeshError: it is refused, or failed.
            HungUpError: the client hung up; nothing of the upload is kept.
        """
        settings = self._settings
        options = options_of(request.query_params, default_size(settings.documents_tokenizer))
        boundary_of(request)
        async with AsyncExitStack() as held:
            await held.enter_async_context(self._places.admit(1))
            size = _length(request, settings.documents_bytes) + 2 * settings.documents_text_bytes
            await held.enter_async_context(self._disk.admit(size))
            await self._check(collection, options, call)
            folder = Path(await asyncio.to_thread(tempfile.mkdtemp, dir=self._scratch.path))
            held.push_async_callback(asyncio.to_thread, _removed, folder)
            reader = await held.enter_async_context(
                UploadReader(folder, settings.documents_read_s, call.deadline)
            )
            files = await received(
                request,
                folder,
                call.deadline,
                most=settings.documents_bytes,
                most_files=settings.documents_files,
            )
            work = self._work(collection, options, call, reader, files)
            run = _Run(held.pop_all(), work, self._releasing)
        if "text/event-stream" in request.headers.get("accept", ""):
            return events.response(run.events())
        return JSONResponse(await unless_hung_up(request, run.result()))

    async def _check(self, collection: str, options: UploadOptions, call: Call) -> None:
        """Ask the retriever whether this caller may ingest now, before anything of the upload is read.

        It is asked by an ingest without passages and without an end, of which nothing is kept.

        Raises:
            MeshError: the caller may not, or there is no such collection.
        """

        async def begun() -> AsyncIterator[bytes]:
            yield pb.IngestRequest(
                collection=collection, create_if_missing=options.create
            ).SerializeToString()

        try:
            await self._forwarder.reply(_method("Ingest"), begun(), call)
        except MeshError as error:
            if error.field != "last":
                raise

    async def _work(
        self,
        collection: str,
        options: UploadOptions,
        call: Call,
        reader: UploadReader,
        files: list[FormFile],
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield what was done, ``{"end": …}`` with the whole result last."""
        yield {"received": {"files": len(files), "bytes": sum(one.size for one in files)}}
        result: dict[str, Any] = {}
        async with aclosing(reader.events(self._job(collection, options, files))) as reading:
            async for event in reading:
                yield event
                result = event.get("read", {})
        result = {"dryRun": options.dry_run, **result}
        passages = int(result["passages"])
        if not options.dry_run:
            if not passages:
                raise HttpProblem(NOTHING_READ, "NOTHING_READ", _nothing_read(result))
            async with aclosing(self._ingest(options, call, reader, passages)) as ingesting:
                async for event in ingesting:
                    yield event
                    result |= event.get("ingested", {})
                    result |= event.get("embedding", {})
        yield {"end": result}

    def _job(self, collection: str, options: UploadOptions, files: list[FormFile]) -> GatheringJob:
        settings = self._settings
        return GatheringJob(
            [(str(one.path), one.address, one.reason) for one in files],
            provider=options.provider,
            attributes=options.attributes,
            base_url=options.base_url,
            size=options.size,
            overlap=options.overlap,
            tokenizer=settings.documents_tokenizer,
            limits={
                "file_bytes": settings.documents_bytes,
                "unpacked_bytes": 4 * settings.documents_bytes,
                "characters": settings.documents_text_bytes,
                "memory_bytes": settings.documents_memory_bytes,
            },
            text_bytes=settings.documents_text_bytes,
            collection="" if options.dry_run else collection,
            create=options.create,
        )

    async def _ingest(
        self, options: UploadOptions, call: Call, reader: UploadReader, passages: int
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield how many passages were sent; that they are durable; and how many of all have vectors."""
        sending = asyncio.create_task(
            self._forwarder.reply(_method("Ingest"), reader.requests(passages), call)
        )
        try:
            while not sending.done():
                await asyncio.wait((sending,), timeout=_SAYS_EVERY_S)
                yield {"sent": {"done": reader.sent, "passages": passages}}
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        reply = pb.IngestResponse.FromString(sending.result())
        counts = {"added": reply.added, "replaced": reply.replaced, "unchanged": reply.unchanged}
        collection = reply.collection
        yield {"ingested": {**counts, "collection": json_format.MessageToDict(collection)}}
        while options.wait and collection.encoder and collection.embedded < 1:
            if call.deadline.remaining() <= 2 * _SAYS_EVERY_S:
                return  # what is durable is no failure
            await asyncio.sleep(_SAYS_EVERY_S)
            asked = pb.GetCollectionRequest(name=collection.name).SerializeToString()
            with contextlib.suppress(DeadlineExceeded):
                found = await self._forwarder.reply(_method("GetCollection"), asked, call)
                collection = pb.GetCollectionResponse.FromString(found).collection
                yield {"embedding": {"collection": json_format.MessageToDict(collection)}}


class _Run:
    """Work that goes on at its own pace, however slowly its client reads what was done.

    Args:
        held: what is given back once the work is done.
        work: yields what was done, and ``{"end": …}`` last.
        releasing: has the task that gives it back, until it is done.
    """

    def __init__(
        self,
        held: AsyncExitStack,
        work: AsyncGenerator[dict[str, Any], None],
        releasing: set[asyncio.Task[None]],
    ) -> None:
        self._held = held
        self._releasing = releasing
        self._work = work
        self._done: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._release)

    async def _run(self) -> None:
        try:
            async with aclosing(self._work) as work:
                async for event in work:
                    self._done.put_nowait(event)
        finally:
            self._done.put_nowait(None)

    def _release(self, _: object) -> None:
        """Give back what is held, in a task that nobody cancels, however often its client's is."""
        releasing = asyncio.create_task(self._held.aclose())
        self._releasing.add(releasing)
        releasing.add_done_callback(self._releasing.discard)

    async def result(self) -> dict[str, Any]:
        """Return the result; cancelling this ends the work."""
        try:
            result: dict[str, Any] = {}
            while (event := await self._done.get()) is not None:
                result = event.get("end", result)
            await self._task
            return result
        finally:
            await self._end()

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield what was done as events, last ``end`` with the result, or ``error``; closing ends it."""
        try:
            while (event := await self._done.get()) is not None:
                name = "end" if "end" in event else ""
                yield events.event(json.dumps(event.get("end", event)).encode(), name)
            await self._task
        except (MeshError, HttpProblem) as error:
            yield events.event(json.dumps(problem_of(error)).encode(), "error")
        except Exception as error:  # noqa: BLE001 - its details are for the log
            yield events.event(json.dumps(problem_of(to_mesh_error(error))).encode(), "error")
        finally:
            await self._end()

    async def _end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def _method(name: str) -> PublicMethod:
    return public_methods()[f"{_SERVICE}/{name}"]


def _length(request: Request, most: int) -> int:
    """Return the length of a body that its head states, else the longest that it may have. Bytes."""
    stated = request.headers.get("content-length", "")
    return min(int(stated), most) if stated.isdecimal() else most


def _removed(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _nothing_read(result: dict[str, Any]) -> str:
    """Return why nothing of an upload was read."""
    if result["numSkipped"] == 1 and not result["files"]:
        return f"no passage was read: the file {result['skipped'][0]['reason']}"
    return (
        f"no passage was read: {result['numSkipped']:,} files cannot be read, {result['numEmpty']:,} hold no "
        "text; with dry_run=true the reply names them"
    )
