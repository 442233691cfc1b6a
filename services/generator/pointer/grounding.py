"""Where a generated answer stands in a passage, in the passage's own letters."""

from collections.abc import Sequence

from services.generator.pointer.tokenization import Text


def find_tokens(answer: Sequence[int], text: Text) -> tuple[int, int] | None:
    """Characters [begin, end) of the first place where ``answer`` stands token by token in ``text``, or None."""
    wanted = tuple(answer)
    if not wanted:
        return None
    for at in range(len(text.ids) - len(wanted) + 1):
        if text.ids[at] == wanted[0] and text.ids[at : at + len(wanted)] == wanted:
            return text.offsets[at][0], text.offsets[at + len(wanted) - 1][1]
    return None


def find_letters(answer: str, passage: str) -> tuple[int, int] | None:
    """Characters [begin, end) where ``answer`` stands in ``passage`` up to case, spaces and punctuation, or None.

    Compares letters and digits only, and only whole words of the passage.
    """
    wanted = "".join(c for c in answer.casefold() if c.isalnum())
    if not wanted:
        return None
    letters = []
    places = []
    for place, character in enumerate(passage):
        for folded in character.casefold():
            if folded.isalnum():
                letters.append(folded)
                places.append(place)
    joined = "".join(letters)
    at = joined.find(wanted)
    while at >= 0:
        begin, end = places[at], places[at + len(wanted) - 1] + 1
        if (begin == 0 or not passage[begin - 1].isalnum()) and (end == len(passage) or not passage[end].isalnum()):
            return begin, end
        at = joined.find(wanted, at + 1)
    return None
