"""BERTScore of answers, by the package ``bert-score``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Final

import numpy as np

from evenmesh_core.arrays import FloatArray, IntArray
from evenmesh_lab.similarities.models import LOCAL, Models, Once, required
from evenmesh_lab.similarities.similarity import Check, Similarity, unchecked

_BATCH: Final = 64
_LONGEST: Final = 512
_DEPTHS: Final = ("num_hidden_layers", "encoder_layers")


class BertScorer:
    """An encoder cut at the layer that BERTScore reads, and its tokenizer.

    The layer is the package's own choice for a model it knows by name, else three quarters of the way up,
    which is where most of its choices lie. Neither idf weights nor baseline rescaling.

    ``bert-score`` 0.3 was written for transformers 4; what it does with a model and a tokenizer in hand still
    works with 5, its own loading of them does not always, so they are loaded here:

    - it takes any path with "t5" in it for a T5, and fills another model's weights with noise then;
    - a tokenizer without a length limit overflows, so one is set;
    - the space before the first word, which byte-level tokenizers (RoBERTa) were measured with, is no longer
      put there by the argument that the package passes, so the tokenizer is loaded with it;
    - an empty text makes it call a method that is gone; such a text scores 0, as the package means it to.

    Args:
        models: which model (``bert_score``).

    Raises:
        MissingModel: it cannot be had.
    """

    def __init__(self, models: Models) -> None:
        setting = models.setting("bert_score")
        folder = models.folder("bert_score")
        self._package: Any = required("bert_score.utils", setting, "bert_score")
        transformers: Any = required("transformers", setting, "bert_score")
        torch: Any = required("torch", setting, "bert_score")
        with models.loading("bert_score", folder):
            config = transformers.AutoConfig.from_pretrained(folder, **LOCAL)
            self.layers = self._layers(models.bert_score or "", folder, _depth(config))
            for name in _DEPTHS:
                if hasattr(config, name):
                    setattr(config, name, self.layers)
            model, report = transformers.AutoModel.from_pretrained(
                folder, config=config, output_loading_info=True, **LOCAL
            )
            self._tokenizer = _tokenizer(transformers, folder, config)
            missing = sorted(name for name in report["missing_keys"] if "pooler" not in name)
            if missing:
                raise ValueError(f"its weights lack {', '.join(missing[:3])}")
        if getattr(config, "is_encoder_decoder", False):
            model = model.get_encoder()
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model = model.float().eval().to(self._device)
        self._lock = Lock()

    def f1(
        self, candidates: Sequence[str], references: Sequence[str], check: Check = unchecked
    ) -> FloatArray:
        """Return BERTScore F1 of P candidates and references, a vector [P]. The package sorts by length;
        ``check`` is called before each batch."""
        weights = defaultdict(lambda: 1.0, {self._tokenizer.sep_token_id: 0, self._tokenizer.cls_token_id: 0})
        # The package has no place for a check of its own.
        with self._lock, self._model.register_forward_pre_hook(lambda *_: check()):
            scores = self._package.bert_cos_score_idf(
                self._model,
                list(references),
                list(candidates),
                self._tokenizer,
                weights,
                batch_size=_BATCH,
                device=self._device,
            )
        return np.asarray(scores[:, 2].double().numpy(), np.float64)

    def _layers(self, model: str, folder: Path, depth: int) -> int:
        known = self._package.model2layers
        names = (model, "/".join(folder.parts[-2:]), folder.name)
        chosen = next((known[name] for name in names if name in known), None)
        return min(int(chosen), depth) if chosen is not None else max(1, round(0.75 * depth))


class BertScore(Similarity):
    """BERTScore F1 (Zhang et al. 2020): every token is matched with the most alike of the other text.

    In [−1, 1]; of unrelated texts it is far from 0, because embeddings of any two tokens are somewhat alike.

    Args:
        scorer: the scorer, loaded when it is first wanted.
    """

    name = "bert_score"
    low = -1.0

    def __init__(self, scorer: Once[BertScorer]) -> None:
        self._scorer = scorer

    def judge(
        self, texts: Sequence[str], left: IntArray, right: IntArray, question: str, check: Check
    ) -> FloatArray:
        """Judge pairs; a text without words scores 0."""
        scores = np.zeros(len(left))
        has_words = np.array([bool(text.strip()) for text in texts])
        worded = np.flatnonzero(has_words[left] & has_words[right])
        scorer = self._scorer.get()
        if len(worded):
            scores[worded] = scorer.f1(
                [texts[at] for at in left[worded]], [texts[at] for at in right[worded]], check
            )
        return scores


def _depth(config: Any) -> int:
    for name in _DEPTHS:
        depth = getattr(config, name, None)
        if isinstance(depth, int) and depth > 0:
            return depth
    raise ValueError("its configuration does not say how many layers it has")


def _tokenizer(transformers: Any, folder: Path, config: Any) -> Any:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **LOCAL)
    if isinstance(tokenizer, (transformers.RobertaTokenizer, transformers.GPT2Tokenizer)):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, add_prefix_space=True, **LOCAL)
    if tokenizer.pad_token_id is None:
        raise ValueError("its tokenizer has no padding token")
    positions = getattr(config, "max_position_embeddings", None)
    # RoBERTa's positions begin after its padding token.
    most = positions - 2 if isinstance(positions, int) and positions > 2 else _LONGEST
    if tokenizer.model_max_length > 10**9:
        tokenizer.model_max_length = min(most, _LONGEST)
    return tokenizer
