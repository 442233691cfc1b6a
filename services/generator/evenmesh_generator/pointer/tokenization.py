"""How a question and a passage become the tokens of one pair."""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor

from evenmesh_core.asking import asking_first
from evenmesh_generator.pointer.markup import BREAK, CELL, heads_of_cells, readable

CLS, SEP, PAD = 101, 102, 0
LONGEST_PAIR = 256
"""Longest pair, in tokens, that the shipped model was trained on."""

MOST_PAIRS = 16
"""Most pairs of one answer, unless it has more passages: long ones are read in several."""
MAX_QUESTION = 64
"""Most tokens that are read of a question."""
MAX_TITLE = 24
"""Longest title kept, in tokens, the colon after it not counted."""
OVERLAP = 48
"""Tokens that two pieces of a text share: an answer that is not longer stands whole in one of them."""
_BINDS = "_"
_STOP = ","
"""What is read where a cell of a table ends."""
_NUMBER: Final = re.compile(r"(?<=\d)[.,:](?=\d)")
"""A mark within a number or a time, such as 3.5 and 12:30."""
_ABBREVIATION: Final = re.compile(r"\b[^\W\d_]{1,3}(?:\.[^\W\d_])+(?!\w)")
"""Letters with full stops between them, such as LL.D and U.S; the last full stop may stay behind."""


@dataclass(frozen=True)
class Pair:
    """Tokens ``[CLS] question [SEP] title: text [SEP]``.

    ``boundary``: index of the first passage token (what precedes has token type 0, the rest 1);
    ``text_start``: index of the first token of the text.
    """

    ids: tuple[int, ...]
    boundary: int
    text_start: int


class Block(NamedTuple):
    """Tokens of which an answer may be a span; ``joined``: those that continue the word of the one before."""

    ids: tuple[int, ...]
    joined: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Text:
    """Tokens of a passage's text with the character span of each in the original.

    ``breaks``: tokens that begin another block of the text, such as a cell of a table; ``bars``: tokens that
    stand for the bars of tables, or repeat the head of a cell's column: they are read, and in no answer;
    ``joined``: tokens that continue the word of the one before, which is in the same block.
    """

    ids: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...]
    breaks: frozenset[int] = frozenset()
    bars: frozenset[int] = frozenset()
    joined: frozenset[int] = frozenset()

    def blocks(self, shown: int) -> Iterator[Block]:
        """Yield each block of the first ``shown`` tokens: an answer is a span of one."""
        edges = [0, *sorted(at for at in self.breaks if 0 < at < shown), shown]
        for begin, end in pairwise(edges):
            if begin not in self.bars:
                joined = frozenset(at - begin for at in range(begin + 1, end) if at in self.joined)
                yield Block(self.ids[begin:end], joined)

    def whole(self, shown: int) -> int:
        """Return how many of the first ``shown`` tokens are of words that are not cut there."""
        while shown in self.joined:
            shown -= 1
        return shown


class PairTokenizer:
    """The base model's lower-casing WordPiece tokenizer, without its truncation and padding."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        # A passage that holds "[SEP]" has these letters, and does not end where they stand.
        self._tokenizer.encode_special_tokens = True
        vocabulary = self._tokenizer.get_vocab()
        self._continuing = frozenset(token for piece, token in vocabulary.items() if piece.startswith("##"))
        self._binds = vocabulary.get(_BINDS)

    def ids(self, text: str) -> tuple[int, ...]:
        """Return the word-piece ids of ``text``, without special tokens."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def question(self, text: str) -> tuple[int, ...]:
        """Return the word-piece ids of a question, what asks first, at most :data:`MAX_QUESTION`."""
        return self.ids(asking_first(text))[:MAX_QUESTION]

    def text(self, text: str) -> Text:
        """Return the word-piece ids of ``text`` and where each lies in it; Markdown is read as text."""
        plain = readable(text)
        heads = heads_of_cells(plain)
        encoding = self._tokenizer.encode(_read(plain, heads), add_special_tokens=False)
        offsets, repeated = _in_original(encoding.offsets, heads)
        offsets = _with_marks(plain, offsets)
        bars: frozenset[int] = frozenset()
        breaks: frozenset[int] = frozenset()
        if CELL in plain:
            bars = repeated | {at for at, (begin, _) in enumerate(offsets) if plain[begin] == CELL}
        if BREAK in plain:
            gaps = enumerate(pairwise(offsets), start=1)
            breaks = frozenset(at for at, (one, other) in gaps if BREAK in plain[one[1] : other[0]])
        breaks |= bars | {at + 1 for at in bars}
        ids = tuple(encoding.ids)
        return Text(ids, offsets, breaks, bars, self._joined(plain, ids, offsets) - breaks)

    def piece(self, token: int) -> str:
        """Return the word piece of ``token``, ``##`` before one that continues a word; empty for a special
        token.
        """
        piece = self._tokenizer.id_to_token(token)
        return "" if piece is None or (piece.startswith("[") and len(piece) > 1) else str(piece)

    def _joined(self, plain: str, ids: Sequence[int], offsets: Sequence[tuple[int, int]]) -> frozenset[int]:
        """Return the tokens that continue a word: pieces of it, names with ``_``, numbers, abbreviations."""
        marks = {found.start() for found in _NUMBER.finditer(plain)}
        for found in _ABBREVIATION.finditer(plain):
            marks.update(at for at in range(*found.span()) if plain[at] == ".")
        pairs = enumerate(zip(pairwise(ids), pairwise(offsets), strict=True), start=1)
        return frozenset(
            at
            for at, ((token, following), ((mark, _), (begin, _))) in pairs
            if following in self._continuing
            or self._binds in {token, following}
            or begin in marks
            or (mark in marks and begin == mark + 1)
        )

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``: lower case, word pieces joined, special tokens left out."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def title_ids(self, title: str) -> tuple[int, ...]:
        """Return the ids of ``title`` and a colon; empty for an empty title."""
        ids = self.ids(title)[:MAX_TITLE]
        return ids + self.ids(":") if ids else ()


def as_read(text: str) -> str:
    """Return Markdown as the model reads it: without signs, the head of its column before each cell."""
    plain = readable(text)
    return _read(plain, heads_of_cells(plain))


def _read(plain: str, heads: Sequence[tuple[int, str]]) -> str:
    """Return a text with each head before the character of that index."""
    edges = [0, *(at for at, _ in heads), len(plain)]
    first, *others = (plain[begin:end] for begin, end in pairwise(edges))
    read = first + "".join(head + part for (_, head), part in zip(heads, others, strict=True))
    return read.replace(CELL, _STOP)


def _in_original(
    offsets: Sequence[tuple[int, int]], heads: Sequence[tuple[int, str]]
) -> tuple[tuple[tuple[int, int], ...], frozenset[int]]:
    """Return where tokens of a text with heads lie in that without, and which tokens are of heads.

    A token of a head lies, without characters, where the head is read.
    """
    found: list[tuple[int, int]] = []
    repeated: set[int] = set()
    shift, number = 0, 0
    for token, (begin, end) in enumerate(offsets):
        while number < len(heads) and begin >= heads[number][0] + shift + len(heads[number][1]):
            shift += len(heads[number][1])
            number += 1
        if number < len(heads) and begin >= heads[number][0] + shift:
            repeated.add(token)
            found.append((heads[number][0], heads[number][0]))
        else:
            found.append((begin - shift, end - shift))
    return tuple(found), frozenset(repeated)


def _with_marks(text: str, offsets: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Return where tokens lie, each with the combining marks on its last letter.

    The tokenizer drops marks that are characters of their own, such as accents of decomposed text and many
    vowels of Hindi and Thai. Those within a word lie between two tokens, those at its end after the last one.
    """
    if text.isascii():
        return offsets
    found = []
    for begin, end in offsets:
        last = end
        while begin < last < len(text) and unicodedata.category(text[last]) == "Mn":
            last += 1
        found.append((begin, last))
    return tuple(found)


def room(question_ids: Sequence[int], title_ids: Sequence[int], limit: int) -> int:
    """Return how many text tokens fit a pair of at most ``limit`` tokens (at least 1)."""
    return max(1, limit - 3 - len(question_ids) - len(title_ids))


def pair(
    question_ids: Sequence[int],
    title_ids: Sequence[int],
    text_ids: Sequence[int],
    *,
    limit: int,
    start: int = 0,
) -> Pair:
    """Lay out one pair of at most ``limit`` tokens, the text cut to a window from token ``start``."""
    window = tuple(text_ids[start : start + room(question_ids, title_ids, limit)])
    head = (CLS, *question_ids, SEP)
    return Pair((*head, *title_ids, *window, SEP), len(head), len(head) + len(title_ids))


def pieces(text: Text, space: int, most: int) -> list[int]:
    """Return the tokens at which the pieces of a text begin, each of at most ``space`` tokens.

    Pieces overlap. Where more than ``most`` are needed, the first ones are returned, at least one.
    """
    begins = [0]
    while begins[-1] + space < len(text.ids) and len(begins) < most:
        begins.append(begins[-1] + max(1, space - OVERLAP))
    return begins


def in_one_text(passages: Sequence[tuple[str, str]]) -> str:
    """Return the titles and texts of passages, best first, as one text.

    ``context 1: {doc1} … context k: {dock}``, a document being its title and text: what follows the input in
    in-prompt augmentation (Salemi and Zamani, 2025, section 5.1).
    """
    documents = (" ".join(filter(None, one)) for one in passages)
    return " ".join(f"context {place}: {document}" for place, document in enumerate(documents, start=1))


def pad_pairs(pairs: Sequence[Pair]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the ids, mask (1 on tokens) and token types of ``pairs``, each [N, L] with L the longest."""
    length = max(len(p.ids) for p in pairs)
    input_ids = torch.full((len(pairs), length), PAD)
    mask = torch.zeros_like(input_ids)
    types = torch.zeros_like(input_ids)
    for row, p in enumerate(pairs):
        input_ids[row, : len(p.ids)] = torch.tensor(p.ids)
        mask[row, : len(p.ids)] = 1
        types[row, p.boundary : len(p.ids)] = 1
    return input_ids, mask, types
