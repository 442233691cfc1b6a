"""A tokenizer as its file says, without transformers, which takes half a second to import."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer

FILE: Final = "tokenizer.json"
CONFIG: Final = "tokenizer_config.json"
_TYPES: Final = "token_type_ids"


class FileTokenizer:
    """What this room calls of a fast tokenizer of transformers, with the same results.

    Setting the truncation changes it: two threads must not use one at the same time.

    Args:
        folder: holds ``tokenizer.json`` and ``tokenizer_config.json``, as transformers saves them.
        inputs: names of what the model reads.
    """

    def __init__(self, folder: Path, inputs: Sequence[str]) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / FILE))
        self._tokenizer.no_padding()
        config = json.loads((folder / CONFIG).read_bytes())
        self._cut_from: str = config.get("truncation_side", "right")
        self._inputs = tuple(inputs)

    def __len__(self) -> int:
        """Return how many tokens it has, added ones among them."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def __call__(
        self,
        queries: Sequence[str],
        texts: Sequence[str],
        *,
        truncation: str | bool,
        max_length: int | None,
        return_attention_mask: bool,
        split_special_tokens: bool,
    ) -> dict[str, list[list[int]]]:
        """Return the inputs of pairs, not padded, by name: those of ``inputs``, without a mask.

        Args:
            queries: one for each pair.
            texts: one for each pair.
            truncation: how pairs are cut, or False.
            max_length: longest pair, where pairs are cut. Tokens.
            return_attention_mask: False.
            split_special_tokens: whether special tokens in texts are read as the characters they are of.
        """
        if truncation and max_length is not None:
            self._tokenizer.enable_truncation(
                max_length, stride=0, strategy=str(truncation), direction=self._cut_from
            )
        else:
            self._tokenizer.no_truncation()
        self._tokenizer.encode_special_tokens = split_special_tokens
        read = self._tokenizer.encode_batch(list(zip(queries, texts, strict=True)))
        found = {"input_ids": [one.ids for one in read]}
        return found | {_TYPES: [one.type_ids for one in read]} if _TYPES in self._inputs else found

    def get_added_vocab(self) -> dict[str, int]:
        """Return the id of each added token."""
        return {token.content: at for at, token in self._tokenizer.get_added_tokens_decoder().items()}

    def add_tokens(self, new: Sequence[str], *, special_tokens: bool) -> int:
        """Add tokens and return how many were new."""
        add = self._tokenizer.add_special_tokens if special_tokens else self._tokenizer.add_tokens
        return add(list(new))

    def convert_tokens_to_ids(self, token: str) -> int | None:
        """Return the id of a token; None for one that it does not have."""
        return self._tokenizer.token_to_id(token)
