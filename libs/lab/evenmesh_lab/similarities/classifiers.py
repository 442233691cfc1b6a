"""Sequence classifiers that read two texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any, Final

import numpy as np

from evenmesh_core.arrays import FloatArray
from evenmesh_lab.similarities.models import LOCAL, Models, required
from evenmesh_lab.similarities.similarity import Check, unchecked

_BATCH: Final = 32
_LONGEST: Final = 512

LabelChoice = Callable[[Mapping[int, str]], int]
"""Choose the index of the label that counts from a classifier's labels by index; a ``ValueError`` says why
there is none."""


class PairClassifier:
    """The probability of one label of a transformers sequence classifier, in float32.

    Loaded with transformers rather than as a ``CrossEncoder``, which wraps the same class, because it
    alone reports a model without a trained head, whose head would silently be random.

    Args:
        kind: field of ``models`` that names it.
        models: which model.
        label: chooses the label that counts, where there is more than one.

    Raises:
        MissingModel: it cannot be had.
    """

    def __init__(self, kind: str, models: Models, label: LabelChoice) -> None:
        setting = models.setting(kind)
        folder = models.folder(kind)
        transformers: Any = required("transformers", setting, kind)
        self._torch: Any = required("torch", setting, kind)
        with models.loading(kind, folder):
            model, report = transformers.AutoModelForSequenceClassification.from_pretrained(
                folder, output_loading_info=True, **LOCAL
            )
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **LOCAL)
            if report["missing_keys"]:
                missing = ", ".join(sorted(report["missing_keys"])[:3])
                raise ValueError(f"it is no trained classifier: its weights lack {missing}")
            self._label = label({int(at): str(name) for at, name in model.config.id2label.items()})
        self._device = "cuda" if self._torch.cuda.is_available() else "cpu"
        self._model = model.eval().to(self._device, self._torch.float32)
        self._tokenizer = tokenizer
        positions = getattr(model.config, "max_position_embeddings", None)
        most = positions - 2 if isinstance(positions, int) and positions > 2 else _LONGEST
        self._longest = tokenizer.model_max_length if tokenizer.model_max_length < 10**9 else most
        # A fast tokenizer sets its truncation in place and must not be used by two threads at once.
        self._lock = Lock()

    @property
    def separator(self) -> str:
        """The tokenizer's separator, ``[SEP]``."""
        return str(self._tokenizer.sep_token or "")

    def probabilities(self, pairs: Sequence[tuple[str, str]], check: Check = unchecked) -> FloatArray:
        """Return P(label) of each ordered pair of texts, a vector [P]. Batches hold similar lengths;
        ``check`` is called before each."""
        order = sorted(range(len(pairs)), key=lambda at: -len(pairs[at][0]) - len(pairs[at][1]))
        values = np.empty(len(pairs))
        for begin in range(0, len(order), _BATCH):
            check()
            batch = order[begin : begin + _BATCH]
            with self._lock:
                features = self._tokenizer(
                    [pairs[at][0] for at in batch],
                    [pairs[at][1] for at in batch],
                    padding=True,
                    truncation=True,
                    max_length=self._longest,
                    return_tensors="pt",
                )
            with self._torch.inference_mode():
                logits = self._model(**features.to(self._device)).logits.double().cpu()
            shares = logits[:, 0].sigmoid() if logits.shape[1] == 1 else logits.softmax(1)[:, self._label]
            values[batch] = shares.numpy()
        return values
