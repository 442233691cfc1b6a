"""The routes of OpenAI's API, and of the rerank APIs of Cohere and Jina."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Final, TypeVar

from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from evenmesh.generator.v1 import generator_service_pb2 as generator_pb
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.reranker.v1 import reranker_service_pb2 as reranker_pb
from evenmesh.retriever.v1 import collection_service_pb2 as collection_pb
from evenmesh.retriever.v1 import retriever_service_pb2 as retriever_pb
from evenmesh.wire.errors import InvalidField, MeshError, NotFound
from evenmesh_gateway.calls import Call, CallReader, peer_of, unless_hung_up
from evenmesh_gateway.forwarding import Forwarder
from evenmesh_gateway.http import events
from evenmesh_gateway.http.bodies import check_head, largest_json, read_body
from evenmesh_gateway.http.problems import HttpProblem
from evenmesh_gateway.http.web import GatewayRoute
from evenmesh_gateway.json_messages import JsonMessages
from evenmesh_gateway.methods import PublicMethod, public_methods
from evenmesh_gateway.openai import chat, embeddings, pipelines, requests, rerank
from evenmesh_gateway.openai.embeddings import EmbeddingRequest
from evenmesh_gateway.openai.errors import error_of
from evenmesh_gateway.openai.outcome import Outcome
from evenmesh_gateway.openai.requests import Asked, ChatRequest, ResponseRequest
from evenmesh_gateway.openai.rerank import RerankRequest, message_of, ranking
from evenmesh_gateway.openai.responses import Response as OpenAiResponse
from evenmesh_gateway.openapi import event_schema, failures, timeout_parameter
from evenmesh_gateway.settings import GatewaySettings

JSON: Final = "application/json"
CHAT: Final = "/v1/chat/completions"
RESPONSES: Final = "/v1/responses"
MODELS: Final = "/v1/models"
EMBEDDINGS: Final = "/v1/embeddings"
RERANK: Final = ("/v1/rerank", "/v2/rerank")
_NO_V1: Final = "the base URL must end with /v1: this path is {}"
_NOT_STORED: Final = f"no response is stored here: send the earlier messages in the input of {RESPONSES}"
_ELSEWHERE: Final = {
    "/v1/completions": f"there are no text completions here: use {CHAT} (LlamaIndex: is_chat_model=True)",
    "/v1/messages": f"messages of Anthropic's API are not answered here: use {CHAT}",
    "/v1/conversations": _NOT_STORED,
    f"{RESPONSES}/{{name:path}}": _NOT_STORED,
    **dict.fromkeys(("/v1/chat", "/v2/chat"), f"chats of Cohere's API are not answered here: use {CHAT}"),
    **dict.fromkeys(("/v1/embed", "/v2/embed"), f"use {EMBEDDINGS}, in the shape of OpenAI's API"),
    **{path.removeprefix("/v1"): _NO_V1.format(path) for path in (CHAT, RESPONSES, MODELS, EMBEDDINGS)},
}
"""Paths that clients ask for, and what to do instead."""
_ASK: Final = "/evenmesh.orchestrator.v1.OrchestratorService/Ask"
_RERANK: Final = "/evenmesh.reranker.v1.RerankerService/Rerank"
_EMBED: Final = "/evenmesh.retriever.v1.RetrieverService/Embed"
_COLLECTIONS: Final = "/evenmesh.retriever.v1.CollectionService/ListCollections"
_RETRIEVERS: Final = "/evenmesh.retriever.v1.RetrieverService/ListRetrievers"
_MODELS: Final = "/evenmesh.generator.v1.GeneratorService/ListModels"
_ANY_WRITES: Final = 64
"""Longest answer up to which the model's own limit is not looked up. Tokens."""
_BODIES: Final = {
    CHAT: ChatRequest,
    RESPONSES: ResponseRequest,
    EMBEDDINGS: EmbeddingRequest,
    **dict.fromkeys(RERANK, RerankRequest),
}

A = TypeVar("A", bound=ChatRequest | ResponseRequest)
R = TypeVar("R")


class OpenAiRoutes:
    """Serves the routes.

    Args:
        settings: bounds.
        call_reader: reads who calls.
        forwarder: makes the calls.
        messages: reads JSON.
    """

    def __init__(
        self, settings: GatewaySettings, call_reader: CallReader, forwarder: Forwarder, messages: JsonMessages
    ) -> None:
        self._settings = settings
        self._call_reader = call_reader
        self._forwarder = forwarder
        self._messages = messages
        methods = public_methods()
        self._ask, self._rerank, self._embed = methods[_ASK], methods[_RERANK], methods[_EMBED]
        self._listing = tuple(methods[path] for path in (_COLLECTIONS, _RETRIEVERS, _MODELS))

    def routes(self) -> list[GatewayRoute]:
        """Return the routes."""
        posted = {
            CHAT: self._chat,
            RESPONSES: self._respond,
            EMBEDDINGS: self._embedded,
            **dict.fromkeys(RERANK, self._ranked),
        }
        return [
            GatewayRoute(MODELS, self._models, methods=["GET"], adds=error_of),
            GatewayRoute(f"{MODELS}/{{name:path}}", self._model, methods=["GET"], adds=error_of),
            *(
                GatewayRoute(path, endpoint, methods=["POST"], adds=error_of)
                for path, endpoint in posted.items()
            ),
            *(
                GatewayRoute(path, self._elsewhere, methods=["GET", "POST", "DELETE"], adds=error_of)
                for path in _ELSEWHERE
            ),
        ]

    async def _elsewhere(self, request: Request) -> Response:
        raise HttpProblem(404, "NO_ROUTE", _ELSEWHERE[request.scope["route"].path])

    async def _chat(self, request: Request) -> Response:
        call, (asked, message, ignored) = await self._read(
            request, self._ask, partial(_read_ask, ChatRequest)
        )
        outcome = await self._asking(asked, message, ignored, call)
        created = int(time.time())
        name = f"chatcmpl-{secrets.token_hex(16)}"
        if not asked.stream:
            await unless_hung_up(request, self._gather(asked, message, call, outcome))
            return JSONResponse(chat.completion(outcome, name, asked.model, created))
        with_usage = asked.stream_options is not None and bool(asked.stream_options.include_usage)
        chunks = chat.Chunks(name, asked.model, created, with_usage=with_usage)
        head = events.Head()
        return events.response(_chunk_events(self._stream(asked, message, call, outcome, chunks, head)), head)

    async def _respond(self, request: Request) -> Response:
        call, (asked, message, ignored) = await self._read(
            request, self._ask, partial(_read_ask, ResponseRequest)
        )
        outcome = await self._asking(asked, message, ignored, call)
        made = OpenAiResponse(secrets.token_hex(16), asked, int(time.time()))
        if not asked.stream:
            await unless_hung_up(request, self._gather(asked, message, call, outcome))
            return JSONResponse(made.whole(outcome))
        head = events.Head()
        return events.response(
            _response_events(self._stream(asked, message, call, outcome, made, head)), head
        )

    async def _ranked(self, request: Request) -> Response:
        call, (asked, message) = await self._read(request, self._rerank, _read_rerank)
        with rerank.renaming(asked):
            data = await unless_hung_up(request, self._forwarder.reply(self._rerank, message, call))
        reply = reranker_pb.RerankResponse.FromString(data)
        return JSONResponse(ranking(asked, reply, f"rerank-{secrets.token_hex(16)}"))

    async def _embedded(self, request: Request) -> Response:
        call, asked = await self._read(request, self._embed, _read_embedding)
        return Response(await unless_hung_up(request, self._vectors(asked, call)), media_type=JSON)

    async def _vectors(self, asked: EmbeddingRequest, call: Call) -> bytes:
        """Encode the texts call by call: one request has one call at a time in the retriever."""
        first, *further = [one.SerializeToString() for one in embeddings.calls_of(asked)]
        replies = [await self._vectors_of(first, call)]
        size = embeddings.memory_of(asked, replies[0])
        async with self._messages.admitted(size):
            for one in further:
                replies.append(await self._vectors_of(one, call))
            return await self._messages.dumps(lambda: embeddings.listing(asked, replies), size)

    async def _vectors_of(self, message: bytes, call: Call) -> retriever_pb.EmbedResponse:
        try:
            reply = await self._forwarder.reply(self._embed, message, call)
        except MeshError as error:
            if error.field == "dimension":
                raise InvalidField("dimensions", error.message) from error  # as OpenAI's API calls it
            raise
        return retriever_pb.EmbedResponse.FromString(reply)

    async def _models(self, request: Request) -> Response:
        call = await self._call_reader.call(request.headers, *self._listing, peer=peer_of(request))
        return JSONResponse(
            {"object": "list", "data": [_model(one) for one in pipelines.names(*await self._parts(call))]}
        )

    async def _model(self, request: Request) -> Response:
        call = await self._call_reader.call(request.headers, *self._listing, peer=peer_of(request))
        name = request.path_params["name"]
        if not pipelines.made_of(name, *await self._parts(call)):
            raise NotFound("model", f"there is no model {name[:256]!r}; GET {MODELS} lists the models")
        return JSONResponse(_model(name))

    async def _parts(self, call: Call) -> tuple[list[str], list[str], list[str]]:
        """Return the names of collections, retrievers and models."""
        data = await asyncio.gather(*(self._forwarder.reply(one, b"", call) for one in self._listing))
        return (
            [one.name for one in collection_pb.ListCollectionsResponse.FromString(data[0]).collections],
            [one.name for one in retriever_pb.ListRetrieversResponse.FromString(data[1]).retrievers],
            [one.name for one in generator_pb.ListModelsResponse.FromString(data[2]).models],
        )

    async def _read(self, request: Request, method: PublicMethod, make: Callable[[Any], R]) -> tuple[Call, R]:
        """Return the call of a request for a method, and what is made of its body: in a thread if large."""
        most = largest_json(method, self._settings.max_body_bytes)
        check_head(request, most, JSON)
        call = await self._call_reader.call(request.headers, method, peer=peer_of(request))
        body = await read_body(request, most, call.deadline)
        return call, await self._messages.loads(make, body)

    async def _asking(self, asked: Asked, message: pb.AskRequest, ignored: list[str], call: Call) -> Outcome:
        """Bound the longest answer of an ask, and return what gathers its events.

        The longest answer is a bound: what the model cannot write anyway is no error, as clients send 1,000
        and more without knowing the model.
        """
        if message.decoding.max_new_tokens > _ANY_WRITES and "decoding" not in (asked.evenmesh or {}):
            with suppress(MeshError):  # who may not list models is refused by the ask, if at all
                listed = generator_pb.ListModelsResponse.FromString(
                    await self._forwarder.reply(self._listing[-1], b"", call)
                )
                for one in listed.models:
                    if one.name == message.model or (one.is_default and not message.model):
                        most = min(message.decoding.max_new_tokens, one.max_new_tokens)
                        message.decoding.max_new_tokens = most
        return Outcome(message, ignored)

    async def _gather(self, asked: Asked, message: pb.AskRequest, call: Call, outcome: Outcome) -> None:
        with requests.renaming(asked):
            async with aclosing(self._events(message, call, outcome.forget)) as received:
                async for event in received:
                    outcome.add(event)
            outcome.check()

    async def _events(
        self, message: pb.AskRequest, call: Call, forget: Callable[[], None] | None = None
    ) -> AsyncGenerator[pb.AskResponse, None]:
        data = message.SerializeToString()
        async with aclosing(self._forwarder.replies(self._ask, data, call, forget=forget)) as replies:
            async for reply in replies:
                yield pb.AskResponse.FromString(reply)

    async def _stream(
        self,
        asked: Asked,
        message: pb.AskRequest,
        call: Call,
        outcome: Outcome,
        made: chat.Chunks | OpenAiResponse,
        head: events.Head,
    ) -> AsyncGenerator[dict[str, Any] | MeshError, None]:
        """Yield the chunks of an ask, from its first text on; an error after the head is the last."""
        said = ""
        try:
            with requests.renaming(asked):
                async with aclosing(self._events(message, call)) as received:
                    async for event in received:
                        piece = outcome.add(event)
                        if piece:
                            for chunk in () if said else made.begin():
                                yield chunk
                            said += piece
                            yield made.text(piece)
                outcome.check(said)
        except MeshError as error:
            if not head.sent:
                raise
            yield error
            return
        for chunk in () if said else made.begin():
            yield chunk
        if not said and outcome.text:
            yield made.text(outcome.text)
        for chunk in made.end(outcome):
            yield chunk


def _read_ask(kind: type[A], value: Any) -> tuple[A, pb.AskRequest, list[str]]:
    asked = requests.read(kind, value)
    return asked, *requests.ask_of(asked)


def _read_rerank(value: Any) -> tuple[RerankRequest, bytes]:
    asked = requests.read(RerankRequest, value)
    return asked, message_of(asked).SerializeToString()


def _read_embedding(value: Any) -> EmbeddingRequest:
    embeddings.refuse_tokens(value)
    return requests.read(EmbeddingRequest, value)


async def _chunk_events(
    chunks: AsyncGenerator[dict[str, Any] | MeshError, None],
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a chat completion, ``[DONE]`` last."""
    async with aclosing(chunks):
        async for one in chunks:
            yield events.event(_line(error_of(one) if isinstance(one, MeshError) else one))
    yield events.event(b"[DONE]")


async def _response_events(
    chunks: AsyncGenerator[dict[str, Any] | MeshError, None],
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a response, each with its name."""
    async with aclosing(chunks):
        async for one in chunks:
            if isinstance(one, MeshError):
                error = error_of(one)  # the clients read its member, the API states the members of that
                yield events.event(_line({**error["error"], **error, "type": "error"}), "error")
            else:
                yield events.event(_line(one), one["type"])


def paths() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the path items of these routes for OpenAPI, and their schemas."""
    kinds = [(kind, "validation") for kind in dict.fromkeys(_BODIES.values())]
    template = "#/components/schemas/{model}"
    _, found = models_json_schema(kinds, ref_template=template)  # type: ignore[arg-type]
    items: dict[str, Any] = {
        MODELS: {"get": _operation("listModels", "List the pipelines that can be asked.")},
        f"{MODELS}/{{name}}": {
            "get": {
                **_operation("getModel", "Describe one pipeline."),
                "parameters": [
                    timeout_parameter(),
                    {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}},
                ],
            }
        },
    }
    summaries = {CHAT: "Answer a chat.", RESPONSES: "Answer an input.", EMBEDDINGS: "Encode texts."}
    for path, kind in _BODIES.items():
        body = {"schema": {"$ref": template.format(model=kind.__name__)}}
        items[path] = {
            "post": {
                **_operation(path.strip("/").replace("/", "."), summaries.get(path, "Rank documents.")),
                "requestBody": {"required": True, "content": {JSON: body}},
            }
        }
        if path in (CHAT, RESPONSES):
            answer = items[path]["post"]["responses"]["200"]["content"]
            answer[events.MEDIA_TYPE] = {"schema": event_schema({"type": "object"})}
    return items, found["$defs"]


def _operation(name: str, summary: str) -> dict[str, Any]:
    answer = {"description": "The reply.", "content": {JSON: {"schema": {"type": "object"}}}}
    return {
        "operationId": name,
        "summary": summary,
        "tags": ["openai"],
        "parameters": [timeout_parameter()],
        "responses": {"200": answer, **failures()},
    }


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "evenmesh"}


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
