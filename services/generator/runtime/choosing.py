"""The next tokens of all rows of the batch: greedy, sampled and beam search together.

Shapes: N rows, V vocabulary, M rows of beams.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from services.generator.runtime.beams import Candidate
from services.generator.runtime.rules import apply
from services.generator.runtime.writing import BeamWriting, SingleWriting


def choose(
    logits: Tensor,
    rows: Mapping[int, Sequence[int]],
    writings: Mapping[int, SingleWriting | BeamWriting],
    *,
    normalised: bool,
) -> None:
    """Gives every answer its next token.

    Args:
        logits: scores [N, V] of the model.
        rows: row of every beam of every answer.
        writings: the answers.
        normalised: whether the scores are log-probabilities already.
    """
    scores = logits.float()
    singles = {owner: one for owner, one in writings.items() if isinstance(one, SingleWriting)}
    searches = {owner: one for owner, one in writings.items() if isinstance(one, BeamWriting)}
    if singles:
        _choose_singles(scores, [rows[owner][0] for owner in singles], list(singles.values()), normalised)
    if searches:
        _choose_beams(scores, [rows[owner] for owner in searches], list(searches.values()), normalised)


def _choose_singles(
    scores: Tensor, rows: Sequence[int], writings: Sequence[SingleWriting], normalised: bool
) -> None:
    mine = _picked(scores, rows)
    tokens: list[int] = mine.argmax(-1).tolist()
    for at, writing in enumerate(writings):
        if writing.processors is None and writing.sampler is None:
            continue
        row = mine[at : at + 1]
        if writing.processors is not None:
            row = apply(writing.processors, [writing.ids], row.clone())
        tokens[at] = int(row[0].argmax()) if writing.sampler is None else writing.sampler.draw(row[0])
    gained = mine.gather(1, torch.tensor(tokens, device=mine.device)[:, None])[:, 0]
    if not normalised:
        gained = gained - mine.logsumexp(-1)
    for writing, token, one in zip(writings, tokens, gained.tolist(), strict=True):
        writing.take(token, one)


def _choose_beams(
    scores: Tensor, rows: Sequence[Sequence[int]], writings: Sequence[BeamWriting], normalised: bool
) -> None:
    own = _picked(scores, [row for mine in rows for row in mine])
    if not normalised:
        own = own.log_softmax(-1)
    processed = own
    if any(one.processors is not None for one in writings):
        pieces = []
        begin = 0
        for one, mine in zip(writings, rows, strict=True):
            piece = own[begin : begin + len(mine)]
            begin += len(mine)
            pieces.append(piece if one.processors is None else apply(one.processors, one.ids, piece.clone()))
        processed = torch.cat(pieces)
    running = torch.tensor([score for one in writings for score in one.search.scores], device=own.device)
    most = min(max(one.search.candidates for one in writings), own.shape[1])
    best, tokens = (processed + running[:, None]).topk(most)
    gained = own.gather(1, tokens).tolist()
    values, ids = best.tolist(), tokens.tolist()
    begin = 0
    for one, mine in zip(writings, rows, strict=True):
        one.take(
            [
                Candidate(values[begin + beam][at], beam, ids[begin + beam][at], gained[begin + beam][at])
                for beam in range(len(mine))
                for at in range(min(one.search.candidates, most))
            ]
        )
        begin += len(mine)


def _picked(scores: Tensor, rows: Sequence[int]) -> Tensor:
    if list(rows) == list(range(len(scores))):
        return scores
    return scores.index_select(0, torch.tensor(rows, device=scores.device))
