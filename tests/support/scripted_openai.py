"""A scripted OpenAI-compatible server: a made-up model with log-probabilities, and hosts before such servers."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from evenmesh_generator.backends.openai.model import OpenAiModel
from evenmesh_generator.hosts.openai import OpenAiHost
from evenmesh_generator.prompts import TemplateLibrary
from evenmesh_generator.settings import GeneratorSettings, ModelSource
from evenmesh_kit.rpc.readiness import Readiness
from tests.support.scripted_http import HttpReply, HttpRequest, Script

NAME = "made-up"
"""The made-up model's name at its server."""


def models(*names: str, **fields: Any) -> dict[str, Any]:
    """What a server lists."""
    return {"object": "list", "data": [{"id": name, "owned_by": "script", **fields} for name in names]}


def made_up(
    *, log_probabilities: bool = True, usage: bool = True, context_tokens: int = 10_000, most_top: int = 20
) -> Script:
    """Return the script of a model that writes words drawn from its prompt and seed.

    Args:
        log_probabilities: whether it gives them.
        usage: whether streams may be asked to count tokens.
        context_tokens: most words of prompt and answer together; it lists no such number.
        most_top: most tokens with log-probabilities at each place.
    """

    async def script(request: HttpRequest, reply: HttpReply) -> None:
        if request.path == "/v1/models":
            await reply.send(200, models(NAME))
            return
        body = request.json
        chat = request.path.endswith("/chat/completions")
        prompt = body["messages"][0]["content"] if chat else body["prompt"]
        read, most = len(prompt.split()), body["max_tokens"]
        top = body.get("top_logprobs", 0) if chat else body.get("logprobs", 0)
        if top > most_top:
            await _refuse(reply, f"top_logprobs must be at most {most_top}")
        elif "stream_options" in body and not usage:
            await _refuse(reply, "stream_options are not known")
        elif read + most > context_tokens:
            message = f"This model's maximum context length is {context_tokens} tokens. However, you asked for more."
            await _refuse(reply, message)
        elif body.get("stream"):
            await _stream(reply, body, prompt, read, chat, log_probabilities)
        else:
            chosen = "True" if _part(prompt) > 0.5 else "False"
            given = _judged(prompt, top, chat) if log_probabilities and top else None
            text = {"message": {"role": "assistant", "content": chosen}} if chat else {"text": chosen}
            choice = {"index": 0, **text, "logprobs": given, "finish_reason": "length"}
            await reply.send(200, {"model": NAME, "choices": [choice]})

    return script


async def _refuse(reply: HttpReply, message: str) -> None:
    await reply.send(400, {"error": {"message": message, "type": "BadRequestError", "code": 400}})


async def _stream(
    reply: HttpReply, body: dict[str, Any], prompt: str, read: int, chat: bool, log_probabilities: bool
) -> None:
    await reply.open_events()
    written = _words(prompt, body.get("seed", 0), body["max_tokens"])
    for at, word in enumerate(written):
        piece: dict[str, Any] = {"delta": {"content": word}} if chat else {"text": word}
        if log_probabilities and body.get("logprobs"):
            piece["logprobs"] = (
                {"content": [{"token": word, "logprob": -0.25, "top_logprobs": []}]}
                if chat
                else {"tokens": [word], "token_logprobs": [-0.25], "top_logprobs": None}
            )
        await reply.event({"model": NAME, "system_fingerprint": "fp1", "choices": [{"index": 0, **piece}]})
        if at > 20:
            await asyncio.sleep(0.001)  # a long answer takes its time, so that it can be left
    finish = "length" if len(written) == body["max_tokens"] else "stop"
    empty: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
    await reply.event({"model": NAME, "choices": [{"index": 0, **empty, "finish_reason": finish}]})
    if "stream_options" in body:
        usage = {
            "prompt_tokens": read,
            "completion_tokens": len(written),
            "prompt_tokens_details": {"cached_tokens": read // 2},
        }
        await reply.event({"model": NAME, "choices": [], "usage": usage})
    await reply.event("[DONE]")
    await reply.end()


def _judged(prompt: str, top: int, chat: bool) -> dict[str, Any]:
    true = 0.9 * _part(prompt)
    values = {" True": math.log(true), " False": math.log(0.9 - true), " yes": math.log(0.05)}
    values = dict(sorted(values.items(), key=lambda pair: -pair[1])[:top])
    if not chat:
        return {"tokens": [max(values, key=values.__getitem__)], "top_logprobs": [values]}
    pairs = [{"token": token, "logprob": value} for token, value in values.items()]
    return {"content": [{**pairs[0], "top_logprobs": pairs}]}


def _part(text: str) -> float:
    """A number in (0, 1) that the text decides."""
    return (1 + int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])) / (2**32 + 2)


def _words(prompt: str, seed: int, most: int) -> list[str]:
    digest = hashlib.sha256(f"{seed} {prompt}".encode()).digest()
    length = most if most > 100 else min(most, 3 + digest[0] % 9)
    return [(" " if at else "") + f"w{digest[at % 32]}" for at in range(length)]


def settings(
    url: str | Sequence[str],
    names: Sequence[str] = (NAME,),
    *,
    source: dict[str, Any] | None = None,
    **fields: Any,
) -> GeneratorSettings:
    """Settings of a generator before the servers at ``url``; the names are those at the servers."""
    values: dict[str, Any] = {
        "port": 0,
        "engine": "openai",
        "remote_urls": (url,) if isinstance(url, str) else tuple(url),
        "remote_proxies": False,
        "remote_start_s": 60.0,
        "models": tuple(
            ModelSource(name=name.rpartition("/")[2], path=name, **(source or {})) for name in names
        ),
        "delta_interval_ms": 0,
        **fields,
    }
    return GeneratorSettings(**values)


@asynccontextmanager
async def opened(
    url: str | Sequence[str],
    *names: str,
    readiness: Readiness | None = None,
    source: dict[str, Any] | None = None,
    **fields: Any,
) -> AsyncIterator[list[OpenAiModel]]:
    """Models of the servers, monitored until the block ends."""
    host = OpenAiHost(
        settings(url, names or (NAME,), source=source, **fields),
        TemplateLibrary.bundled(),
        readiness or Readiness(),
    )
    hosted = await host.start()
    try:
        yield [one for one in hosted if isinstance(one, OpenAiModel)]
    finally:
        await host.stop()
