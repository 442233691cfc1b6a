"""Cosine similarity of sentence embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any

import numpy as np

from evenmesh_core.arrays import FloatArray, IntArray
from evenmesh_lab.similarities.models import LOCAL, Models, Once, required
from evenmesh_lab.similarities.similarity import Check, Similarity, unchecked

_BATCH = 32
_PAIRS_AT_ONCE = 4096


class Encoder:
    """A sentence-transformers model, in float32, whose vectors have length 1.

    Args:
        models: which model (``embedding``).

    Raises:
        MissingModel: it cannot be had.
    """

    def __init__(self, models: Models) -> None:
        setting = models.setting("embedding")
        folder = models.folder("embedding")
        library: Any = required("sentence_transformers", setting, "embedding_cosine")
        with models.loading("embedding", folder):
            self._model = library.SentenceTransformer(str(folder), **LOCAL).float().eval()
        # A fast tokenizer must not be used by two threads at once.
        self._lock = Lock()

    def encode(self, texts: Sequence[str], check: Check = unchecked) -> FloatArray:
        """Return the vectors of T > 0 texts, a matrix [T, dimension]. Batches hold texts of similar lengths;
        ``check`` is called before each."""
        order = sorted(range(len(texts)), key=lambda at: -len(texts[at]))
        vectors = []
        for begin in range(0, len(order), _BATCH):
            check()
            with self._lock:
                vectors.append(
                    self._model.encode(
                        [texts[at] for at in order[begin : begin + _BATCH]],
                        batch_size=_BATCH,
                        normalize_embeddings=True,
                        convert_to_numpy=True,
                        show_progress_bar=False,
                    )
                )
        found = np.concatenate(vectors)
        rows = np.empty(found.shape, np.float64)
        rows[order] = found
        return rows


class EmbeddingCosine(Similarity):
    """Cosine of the angle between the answers' embeddings, in [−1, 1]: below 0 they point apart.

    Args:
        encoder: the encoder, loaded when it is first wanted.
    """

    name = "embedding_cosine"
    low = -1.0

    def __init__(self, encoder: Once[Encoder]) -> None:
        self._encoder = encoder

    def judge(
        self, texts: Sequence[str], left: IntArray, right: IntArray, question: str, check: Check
    ) -> FloatArray:
        """Judge pairs, encoding every text once."""
        vectors = self._encoder.get().encode(texts, check)
        cosines = np.empty(len(left))
        for begin in range(0, len(left), _PAIRS_AT_ONCE):
            check()
            part = slice(begin, begin + _PAIRS_AT_ONCE)
            cosines[part] = np.einsum("pd,pd->p", vectors[left[part]], vectors[right[part]])
        return cosines
