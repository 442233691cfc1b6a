"""Write a generated answer in the passages' own letters."""

from collections.abc import Sequence

from evenmesh_generator.pointer.abstention import ABSTENTION
from evenmesh_generator.pointer.tokenization import PairTokenizer, Text

_NO_SPACE_BEFORE = frozenset(".,;:!?%)]}'’")
_NO_SPACE_AFTER = frozenset("([{$£€#'’-–")


class Grounder:
    """Turns answer tokens, one by one, into text with the case and spacing of the passages.

    The model writes lower-case word pieces. While what it wrote stands in a passage, the text is that
    passage's; where it leaves all passages, the text goes on from a place that has the next token, or
    with the bare word piece; an abstention stands for itself, whatever the passages' words look like. The
    pieces returned by :meth:`push` concatenate to :attr:`text`.
    """

    def __init__(self, passages: Sequence[str], texts: Sequence[Text], tokenizer: PairTokenizer) -> None:
        self._passages = passages
        self._texts = texts
        self._tokenizer = tokenizer
        self._alive: list[tuple[int, int]] = []  # (passage, index of the last token matched)
        self._abstaining = tokenizer.ids(ABSTENTION)
        self._fed: list[int] = []
        self.text = ""

    def push(self, token: int) -> str:
        """Return the text that ``token`` adds; empty for a token without letters."""
        self._fed.append(token)
        if tuple(self._fed) == self._abstaining[: len(self._fed)]:
            piece = self._tokenizer.piece(token)
            return self._add(f" {piece}" if self.text else piece)
        going_on = [
            (passage, at + 1)
            for passage, at in self._alive
            if at + 1 < len(self._texts[passage].ids) and self._texts[passage].ids[at + 1] == token
        ]
        if going_on:
            passage, at = going_on[0]
            offsets = self._texts[passage].offsets
            piece = self._passages[passage][offsets[at - 1][1] : offsets[at][1]]
        else:
            going_on = [
                (passage, at)
                for passage, text in enumerate(self._texts)
                for at, found in enumerate(text.ids)
                if found == token
            ]
            bare = self._tokenizer.piece(token)
            joined = bare.startswith("##")
            if going_on:
                passage, at = going_on[0]
                begin, end = self._texts[passage].offsets[at]
                piece = self._passages[passage][begin:end]
            else:
                piece = bare.removeprefix("##")
            spaced = self.text and not joined and piece[:1] not in _NO_SPACE_BEFORE
            if spaced and self.text[-1] not in _NO_SPACE_AFTER:
                piece = " " + piece
        self._alive = going_on
        return self._add(piece)

    def finish(self) -> str:
        """Return "": nothing is ever held back."""
        return ""

    def _add(self, piece: str) -> str:
        self.text += piece
        return piece
