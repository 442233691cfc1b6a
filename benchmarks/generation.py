"""Generation beside plain ``transformers``, which answers one by one in float32.

Streams, batches and audits, in this process and on a Triton server.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, T5Config, T5ForConditionalGeneration

from benchmarks import page
from benchmarks.shared_data import folder, rows
from evenmesh_core import plackett_luce
from evenmesh_core.arrays import FloatArray
from evenmesh_generator.backends.in_process import InProcessModel
from evenmesh_generator.domain import Answer, Augmentation, Decoding, GenerationRequest, Passage
from evenmesh_generator.hosts.triton import TritonHost
from evenmesh_generator.pointer.reader import PointerReader
from evenmesh_generator.ports import Cancellation, LanguageModel
from evenmesh_generator.prompts import TemplateLibrary
from evenmesh_generator.runtime.assembly import assemble
from evenmesh_generator.runtime.options import EngineOptions
from evenmesh_generator.settings import GeneratorSettings, ModelSource
from evenmesh_kit.compute.cores import usable_cores
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.rpc.readiness import Readiness
from evenmesh_mesh import Mesh, MeshSettings
from evenmesh_mesh.services import TRITON

BUNDLED = "evenmesh-pointer"
SHAPED = "t5-small-shaped"
STREAMS = (1, 4, 16)
REQUESTS, TOGETHER = 16, 8
READ, WRITTEN = 500, 32
"""Approximate tokens of a prompt and of an answer, for the T5-small-shaped model."""
BEAMS = 4
ALPHAS = (1.0, 2.0, 4.0, 8.0)
POOL, SAMPLES, K = 100, 100, 5
COMPARED = 20
"""Answers of an audit that are compared with separate calls."""
TIMED = 10
"""Answers of an audit that are also generated as the authors do."""


async def stream(model: LanguageModel, requests: Sequence[GenerationRequest], callers: int) -> dict[str, str]:
    """Stream every request once, ``callers`` at a time; return medians over the requests."""
    waiting = iter(requests)
    first: list[float] = []
    between: list[float] = []
    tokens = 0

    async def call() -> None:
        nonlocal tokens
        for request in waiting:
            began, seen = time.perf_counter(), 0.0
            async with aclosing(model.generate_stream(request, Cancellation())) as parts:
                async for part in parts:
                    if not seen:
                        seen = time.perf_counter()
                        first.append(seen - began)
                    if isinstance(part, Answer):
                        tokens += part.completion_tokens
                        if part.completion_tokens > 1:
                            between.append((time.perf_counter() - seen) / (part.completion_tokens - 1))

    began = time.perf_counter()
    await asyncio.gather(*(call() for _ in range(callers)))
    took = time.perf_counter() - began
    described = model.describe()
    engine = f"triton ({described.runtime})" if described.engine == "triton" else described.engine
    return _streamed(described.name, engine, callers, median(first), between, tokens / took)


def _streamed(
    model: str, engine: str, callers: int, first_s: float, between_s: Sequence[float], tokens_per_s: float
) -> dict[str, str]:
    return {
        "model": model,
        "engine": engine,
        "streams": str(callers),
        "first text": f"{1e3 * first_s:.0f}",
        "between tokens": f"{1e3 * median(between_s or [0.0]):.1f}",
        "tokens/s": f"{tokens_per_s:.0f}",
    }


async def batched(model: LanguageModel, requests: Sequence[GenerationRequest]) -> tuple[float, list[Answer]]:
    """Return seconds for all of them at once, and the answers."""
    began, cancel = time.perf_counter(), Cancellation()
    answers = await asyncio.gather(*(model.generate(one, cancel) for one in requests))
    return time.perf_counter() - began, answers


def squad(questions: int, pool: int) -> list[RetrievedQuestion]:
    """Dev questions of squad-open with the ``pool`` passages that BM25 finds best for each."""
    from evenmesh_retriever.analyzer import analyzer
    from evenmesh_retriever.backends.bm25.csr import CsrIndex
    from evenmesh_retriever.backends.bm25.postings import build
    from evenmesh_retriever.backends.bm25.weighting import Lucene

    data = folder("squad-open")
    passages = [Passage(row["id"], row["title"], row["text"]) for row in rows(data / "passages.dev.jsonl.gz")]
    asked = [row["question"] for row in rows(data / "questions.dev.jsonl.gz")]
    words = analyzer("english")
    index = CsrIndex(build(words.tokens(f"{one.title} {one.text}") for one in passages), Lucene())
    found = []
    for question in random.Random(7).sample(asked, questions):
        best = index.search(words.tokens(question), pool)
        found.append(RetrievedQuestion(question, [passages[row] for row in best.rows.tolist()], best.scores))
    return found


@dataclass(frozen=True)
class RetrievedQuestion:
    """A question and the passages found for it, best first, with their scores."""

    question: str
    passages: list[Passage]
    scores: FloatArray


def sampled(
    asked: RetrievedQuestion, alpha: float, samples: int, k: int, decoding: Decoding
) -> list[GenerationRequest]:
    """Return the question with the ``k`` passages of each of ``samples`` rankings, as an audit asks it."""
    weights = plackett_luce.log_weights(asked.scores, alpha)
    rankings = plackett_luce.sample_rankings(weights, num_rankings=samples, k=k, rng=0)
    return [
        GenerationRequest(
            asked.question,
            tuple(asked.passages[item] for item in ranking),
            augmentation=Augmentation.FUSION_IN_DECODER,
            decoding=decoding,
        )
        for ranking in rankings.tolist()
    ]


class Plain:
    """A model as any user of transformers runs it: float32, one request at a time.

    Args:
        path: folder of the model; None for the bundled one.
    """

    def __init__(self, path: Path | None) -> None:
        self._reader = PointerReader.from_folder() if path is None else None
        if path is not None:
            self._model: Any = AutoModelForSeq2SeqLM.from_pretrained(path, dtype=torch.float32).eval()
            self._tokenizer: Any = AutoTokenizer.from_pretrained(path)
            self._template = TemplateLibrary.bundled().get("ra-x")

    def answer(self, request: GenerationRequest) -> tuple[str, int]:
        """Text and tokens of an answer."""
        decoding = request.decoding
        if self._reader is not None:
            encodings = self._reader.encode(request.question, [(p.title, p.text) for p in request.passages])
            found = self._reader.answer(
                encodings, num_beams=decoding.num_beams, max_new_tokens=decoding.max_new_tokens
            )
            return found.text, found.tokens
        text = self._template.render(request.question, request.passages)
        with torch.inference_mode():
            ids = self._model.generate(
                **self._tokenizer(text, return_tensors="pt"),
                num_beams=decoding.num_beams,
                max_new_tokens=decoding.max_new_tokens,
                do_sample=False,
            )[0, 1:]
        return self._tokenizer.decode(ids, skip_special_tokens=True), len(ids)

    def streams(self, name: str, requests: Sequence[GenerationRequest]) -> dict[str, str]:
        """Return all of them, one by one: nothing is seen before the end."""
        tokens, seconds = 0, []
        for request in requests:
            began = time.perf_counter()
            tokens += self.answer(request)[1]
            seconds.append(time.perf_counter() - began)
        return _streamed(name, "plain", 1, median(seconds), (), tokens / sum(seconds))


def shaped(path: Path) -> Path:
    """Return a model of T5-small's shape with random weights that make its answers vary."""
    from tests.support import tiny_models

    tiny_models.t5(path / "tiny")
    tokenizer = AutoTokenizer.from_pretrained(path / "tiny")
    config = T5Config(
        vocab_size=32_128,
        d_model=512,
        d_kv=64,
        d_ff=2048,
        num_layers=6,
        num_heads=8,
        dropout_rate=0.0,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,  # type: ignore[call-arg]  # of every encoder–decoder
    )
    torch.manual_seed(0)
    model: Any = T5ForConditionalGeneration(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.3 if "shared" in name else 0.1 if "EncDec" in name else 0.04)
        # Only tokens that the tokenizer has.
        model.shared.weight[len(tokenizer) :] = 0.0
    model.save_pretrained(path / SHAPED)
    tokenizer.save_pretrained(path / SHAPED)
    return path / SHAPED


@contextmanager
def in_process(name: str, path: Path | None, **options: Any) -> Iterator[LanguageModel]:
    """Yield a model in this process."""
    pool = ComputePool(1, "bench")
    made = EngineOptions(path=str(path or ""), device="cpu", **options)
    engine = assemble(name, made, TemplateLibrary.bundled())
    try:
        yield InProcessModel(engine, interval_s=0)
    finally:
        engine.close()
        pool.close()


@asynccontextmanager
async def on_triton(home: Path, path: Path) -> AsyncIterator[dict[str, LanguageModel]]:
    """Yield the bundled model and the one in ``path`` on a Triton server, by name."""
    environment = {
        "EVENMESH_GENERATOR_MODELS": f"{SHAPED}={path}",
        "EVENMESH_GENERATOR_THREADS": "1",
        "EVENMESH_GENERATOR_DEVICE": "cpu",
        "EVENMESH_GENERATOR_CACHE_BYTES": "0",
    }
    async with Mesh(MeshSettings(home, port=0, environment=environment, services=(TRITON,))) as mesh:
        settings = GeneratorSettings(
            engine="triton",
            triton_target=mesh.state.services["triton"].address,
            models=(ModelSource(name=SHAPED),),
            delta_interval_ms=0,
        )
        host = TritonHost(settings, TemplateLibrary.bundled(), Readiness())
        hosted = await host.start()
        try:
            yield {one.describe().name: one for one in hosted}
        finally:
            await host.stop()


async def measure() -> str:
    """Measure one after the other, the peers in turn; return the section of the page."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as made:
        home = Path(made)
        path = shaped(home)
        asked = squad(REQUESTS, POOL)
        requests = {BUNDLED: [_shown(one) for one in asked], SHAPED: [_long(one) for one in asked]}
        plain = {BUNDLED: Plain(None), SHAPED: Plain(path)}
        streams = [plain[name].streams(name, requests[name]) for name in requests]
        with in_process(SHAPED, path, engine="ctranslate2") as model:
            streams += await _streams(model, requests[SHAPED])
        async with on_triton(home, path) as served:
            for name, model in served.items():
                streams += await _streams(model, requests[name])
        batches, audits, whole = [], [], 0.0
        for name, source in ((BUNDLED, None), (SHAPED, path)):
            # The same requests come again and again: no encodings are kept from one to the next.
            with (
                in_process(name, source, cache_bytes=0, home=home) as model,
                in_process(name, source, cache_bytes=0, dtype="float32", home=home) as exact,
            ):
                streams += await _streams(model, requests[name])
                few = requests[name][:TOGETHER]
                batches += [await _batches(model, exact, plain[name], few, beams) for beams in (1, BEAMS)]
        with in_process(BUNDLED, None, home=home) as model:
            generation_s = await _generation(model, asked[1:9])
            for alpha in ALPHAS:
                row, generations = await _audit(model, plain[BUNDLED], asked[0], alpha, generation_s, home)
                audits.append(row)
                whole += generations
    streams.sort(key=lambda row: (row["model"], row["engine"] != "plain", row["engine"], int(row["streams"])))
    return f"""`{BUNDLED}` is the bundled model, with {K} passages of SQuAD; `{SHAPED}` has random
weights, reads about {READ} tokens and writes {WRITTEN}. Plain is `transformers` in float32, one by one; ours
is as it comes, in bfloat16 where the processor has it. Matrix products take one thread; OpenVINO reads the
passages of `{BUNDLED}` where it is installed, each alone, on all {usable_cores()} cores. Milliseconds,
medians; a plain answer is seen at its end.

{page.table(streams)}

Batches in this process, no encodings kept: how many times as many answers a second as plain, one by one and
{TOGETHER} at once, and what the batch itself gains. Identical: the same text as plain when ours computes in
float32 too.

{page.table(batches)}

An audit of one query: {SAMPLES} rankings of {K} from {POOL} passages at each α, beam {BEAMS}; what is asked
twice is asked once, and encodings of passages are kept. A generation is a question not seen before, alone:
{1e3 * generation_s:.0f} ms. Together: the time of {whole:.0f} generations for {SAMPLES * len(ALPHAS)} answers
(target ≤ 40). The way of the authors of Fair-RAG keeps answers by ordered ranking alone and generates one by
one (transformers, float32): the median of {TIMED}, for each that differs.

{page.table(audits)}"""


def _shown(asked: RetrievedQuestion, **decoding: Any) -> GenerationRequest:
    return GenerationRequest(
        asked.question,
        tuple(asked.passages[:K]),
        augmentation=Augmentation.FUSION_IN_DECODER,
        decoding=Decoding(**{"max_new_tokens": WRITTEN, **decoding}),
    )


def _long(asked: RetrievedQuestion) -> GenerationRequest:
    """Return a prompt of about ``READ`` tokens; the tokenizer knows few words, so most letters are tokens."""
    text = " ".join(passage.text for passage in asked.passages[:K])[: READ - 60]
    return GenerationRequest(
        asked.question[:60],
        (Passage("p", "", text),),
        augmentation=Augmentation.IN_PROMPT,
        decoding=Decoding(max_new_tokens=WRITTEN),
    )


async def _streams(model: LanguageModel, requests: Sequence[GenerationRequest]) -> list[dict[str, str]]:
    await stream(model, requests[:2], 1)  # warm
    return [await stream(model, [*requests, *requests][: max(REQUESTS, one)], one) for one in STREAMS]


async def _batches(
    model: LanguageModel,
    exact: LanguageModel,
    plain: Plain,
    requests: Sequence[GenerationRequest],
    beams: int,
) -> dict[str, str]:
    chosen = [replace(one, decoding=replace(one.decoding, num_beams=beams)) for one in requests]
    began = time.perf_counter()
    texts = [plain.answer(one)[0] for one in chosen]
    plain_s = (time.perf_counter() - began) / len(chosen)
    alone_s = 0.0
    for one in chosen:
        alone_s += (await batched(model, [one]))[0] / len(chosen)
    took, _ = await batched(model, chosen)
    _, answers = await batched(exact, chosen)
    same = sum(answer.text == text for answer, text in zip(answers, texts, strict=True))
    ours_s = took / len(chosen)
    return {
        "model": model.describe().name,
        "": "greedy" if beams == 1 else f"beam {beams}",
        "plain, an answer": f"{1e3 * plain_s:.0f} ms",
        "ours, one by one": f"{plain_s / alone_s:.2f}",
        "ours, together": f"{plain_s / ours_s:.2f}",
        "together / one by one": f"{alone_s / ours_s:.2f}",
        "identical": f"{same} of {len(chosen)}",
    }


async def _generation(model: LanguageModel, asked: Sequence[RetrievedQuestion]) -> float:
    """Return seconds of one generation of an audit, of a question not seen before."""
    return median([(await batched(model, [_shown(one, num_beams=BEAMS)]))[0] for one in asked])


async def _audit(
    model: LanguageModel,
    plain: Plain,
    asked: RetrievedQuestion,
    alpha: float,
    generation_s: float,
    home: Path,
) -> tuple[dict[str, str], float]:
    """Audit as the generator's engine does it; return a row, and the time in generations."""
    wanted = sampled(asked, alpha, SAMPLES, K, Decoding(num_beams=BEAMS, max_new_tokens=WRITTEN))
    distinct = list(dict.fromkeys(wanted))
    took, answers = await batched(model, distinct)
    found = dict(zip(distinct, answers, strict=True))
    compared = list(itertools.islice(found, COMPARED))
    same = await _alike(found, compared, home=home)
    with in_process(BUNDLED, None, dtype="float32", home=home) as together:
        _, answers_32 = await batched(together, distinct)
    found_32 = dict(zip(distinct, answers_32, strict=True))
    exact = await _alike(found_32, compared, home=home, dtype="float32")
    authors = []
    for request in itertools.islice(found, TIMED):
        began = time.perf_counter()
        plain.answer(request)
        authors.append(time.perf_counter() - began)
    read = sum(found[one].prompt_tokens for one in wanted)
    computed = sum(answer.cost.computed_tokens for answer in answers)
    authors_s = len(distinct) * median(authors)
    return {
        "α": f"{alpha:g}",
        "rankings": str(len(wanted)),
        "distinct": str(len(distinct)),
        "tokens read / computed": f"{read / computed:.1f}" if computed else "none computed",
        "time": f"{took:.2f} s",
        "in generations": f"{took / generation_s:.0f}",
        "the authors' way": f"{authors_s:.0f} s",
        "its time / ours": f"{authors_s / took:.1f}",
        "identical to separate calls": f"{same} of {len(compared)}",
        "in float32": f"{exact} of {len(compared)}",
    }, took / generation_s


async def _alike(
    found: Mapping[GenerationRequest, Answer], compared: Sequence[GenerationRequest], **options: Any
) -> int:
    """Return how many answers a model that keeps nothing gives as well, asked one by one."""
    same = 0
    with in_process(BUNDLED, None, cache_bytes=0, **options) as fresh:
        for request in compared:
            _, (alone,) = await batched(fresh, [request])
            same += alone.text == found[request].text
    return same
