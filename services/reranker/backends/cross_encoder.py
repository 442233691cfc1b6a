"""``cross-encoder``: reads query and passage together (sentence-transformers ``CrossEncoder``)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from meshkit.batching import MicroBatcher
from meshkit.compute import ComputePool
from meshkit.errors import FailedPrecondition
from services.reranker.domain import Agent, Passage, Scored

NAME: Final = "cross-encoder"

_MAX_PAIRS: Final = 512
"""Most pairs of several callers in one batch: more would only make the first of them wait."""


class ModelError(Exception):
    """A cross-encoder that cannot be had; one line that says why."""


class NoCrossEncoder:
    """Stands where no cross-encoder is set.

    Args:
        setting: the variable that would name one.
    """

    def __init__(self, setting: str) -> None:
        self._setting = setting

    @property
    def name(self) -> str:
        """See the port."""
        return NAME

    async def score(self, query: str, passages: Sequence[Passage], agent: Agent) -> Scored:
        """Says which setting is missing."""
        raise FailedPrecondition(
            "NO_CROSS_ENCODER",
            f"this reranker serves no cross-encoder: set {self._setting} to a model's folder or hub name",
        )


@dataclass(frozen=True, slots=True)
class _Job:
    """The pairs of one request."""

    pairs: list[tuple[str, str]]


class CrossEncoderReranker:
    """Scores pairs of all callers together, in batches of similar length.

    Args:
        model: the scorer.
        pool: one thread; a second batch would only compete with the first.
        max_delay_s: longest wait for pairs of other callers. Seconds.
    """

    def __init__(self, model: PairScorer, pool: ComputePool, *, max_delay_s: float) -> None:
        self._model = model
        self._pool = pool
        self._batcher: MicroBatcher[_Job, list[float]] = MicroBatcher(
            self._score,
            max_size=_MAX_PAIRS,
            max_delay_s=max_delay_s,
            cost=lambda job: len(job.pairs),
            max_cost=_MAX_PAIRS,
        )

    @property
    def name(self) -> str:
        """See the port."""
        return NAME

    @property
    def version(self) -> str:
        """Version of the model."""
        return self._model.version

    async def score(self, query: str, passages: Sequence[Passage], agent: Agent) -> Scored:
        """See the port."""
        pairs = [(query, f"{one.title} {one.text}".strip()) for one in passages]
        return Scored(await self._batcher.submit(_Job(pairs)), self._model.version)

    async def close(self) -> None:
        """Ends the batcher."""
        await self._batcher.close()

    async def _score(self, jobs: Sequence[_Job]) -> list[list[float] | BaseException]:
        scores = await self._pool.run(self._model.score, [pair for job in jobs for pair in job.pairs])
        results: list[list[float] | BaseException] = []
        start = 0
        for job in jobs:
            results.append(scores[start : start + len(job.pairs)])
            start += len(job.pairs)
        return results


class PairScorer:
    """A cross-encoder with one output, as probabilities.

    Args:
        model: a ``sentence_transformers.CrossEncoder``.
        version: names the weights.
        batch_size: pairs of one forward pass.
        dtype: arithmetic of the matrix products.
    """

    def __init__(
        self, model: Any, version: str, *, batch_size: int, dtype: Literal["float32", "bfloat16"]
    ) -> None:
        self._model = model
        self.version = version
        self._batch_size = batch_size
        self._dtype = dtype

    @classmethod
    def load(
        cls,
        path: str,
        *,
        device: str,
        dtype: Literal["auto", "float32", "bfloat16"],
        max_length: int | None,
        batch_size: int,
        allow_download: bool,
    ) -> PairScorer:
        """Loads a model from a folder or, if allowed, from the hub; safetensors only, no code of the model's.

        Raises:
            ModelError: it cannot be had, or does not give one score per pair.
        """
        import torch
        from sentence_transformers import CrossEncoder

        place = ("cuda:0" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        try:
            model = CrossEncoder(
                path,
                device=place,
                max_length=max_length,
                trust_remote_code=False,
                local_files_only=not allow_download,
                model_kwargs={"use_safetensors": True},
            )
        except (OSError, ValueError, RuntimeError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise ModelError(f"{path} cannot be loaded: {reason}") from error
        if model.num_labels != 1:
            raise ModelError(f"{path} gives {model.num_labels} scores a pair; a reranker gives one")
        chosen = dtype if dtype != "auto" else ("bfloat16" if _fast_bfloat16(place) else "float32")
        return cls(model, _version(model), batch_size=batch_size, dtype=chosen)

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """P(useful) of each pair, in order. Computes: call it in a thread."""
        import torch

        by_length = sorted(range(len(pairs)), key=lambda at: len(pairs[at][0]) + len(pairs[at][1]))
        device = self._model.device.type
        with (
            torch.inference_mode(),
            torch.autocast(device, torch.bfloat16, enabled=self._dtype == "bfloat16"),
        ):
            scored = self._model.predict(
                [pairs[at] for at in by_length],
                batch_size=self._batch_size,
                show_progress_bar=False,
                activation_fn=torch.nn.Sigmoid(),
                convert_to_tensor=True,
            )
        scores = [0.0] * len(pairs)
        for at, value in zip(by_length, scored.float().tolist(), strict=True):
            scores[at] = value
        return scores


def _fast_bfloat16(device: str) -> bool:
    import torch

    if device.startswith("cuda"):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    capabilities = torch.cpu.get_capabilities()
    return device == "cpu" and bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))


def _version(model: Any) -> str:
    """Names the weights by their content."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()[:12]
