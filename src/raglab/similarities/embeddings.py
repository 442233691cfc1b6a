"""Cosine similarity of sentence embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any

import numpy as np

from ragcore.arrays import FloatArray
from raglab.similarities.models import Models, Once, required
from raglab.similarities.similarity import Pair, PairwiseSimilarity

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
            self._model = (
                library.SentenceTransformer(str(folder), local_files_only=True, trust_remote_code=False)
                .float()
                .eval()
            )
        # A fast tokenizer must not be used by two threads at once.
        self._lock = Lock()

    def encode(self, texts: Sequence[str]) -> FloatArray:
        """The vectors of texts: matrix [T, dimension]. Batches hold texts of like lengths."""
        order = sorted(range(len(texts)), key=lambda at: -len(texts[at]))
        with self._lock:
            vectors = self._model.encode(
                [texts[at] for at in order],
                batch_size=_BATCH,
                normalize_embeddings=True,
                convert_to_numpy=True,
                show_progress_bar=False,
            )
        rows = np.empty(vectors.shape, np.float64)
        rows[order] = vectors
        return rows


class EmbeddingCosine(PairwiseSimilarity):
    """Cosine of the angle between the answers' embeddings, in [−1, 1]: below 0 they point apart.

    Args:
        encoder: the encoder, loaded when it is first wanted.
    """

    name = "embedding_cosine"
    low = -1.0

    def __init__(self, encoder: Once[Encoder]) -> None:
        self._encoder = encoder

    def judge(self, pairs: Sequence[Pair], question: str) -> FloatArray:
        """Every text is encoded once."""
        place = {text: at for at, text in enumerate(dict.fromkeys(text for pair in pairs for text in pair))}
        vectors = self._encoder.get().encode(list(place))
        left = np.array([place[one] for one, _ in pairs])
        right = np.array([place[other] for _, other in pairs])
        cosines = np.empty(len(pairs))
        for begin in range(0, len(pairs), _PAIRS_AT_ONCE):
            part = slice(begin, begin + _PAIRS_AT_ONCE)
            cosines[part] = np.einsum("pd,pd->p", vectors[left[part]], vectors[right[part]])
        return cosines
