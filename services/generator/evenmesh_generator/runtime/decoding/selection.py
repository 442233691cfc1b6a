"""Select the next tokens of all rows of the batch: greedy, sampled and beam search together.

Shapes: N rows, V vocabulary, M rows of beams.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from evenmesh_generator.runtime.decoding.beams import Candidate
from evenmesh_generator.runtime.decoding.rules import apply
from evenmesh_generator.runtime.decoding.sequences import BeamSequences, SingleSequence


def select_tokens(
    logits: Tensor,
    rows: Mapping[int, Sequence[int]],
    sequences: Mapping[int, SingleSequence | BeamSequences],
    *,
    normalised: bool,
) -> None:
    """Select the next token of every answer.

    Args:
        logits: scores [N, V] of the model.
        rows: row of every beam of every answer.
        writings: the answers.
        normalised: whether the scores are log-probabilities already.
    """
    scores = logits.float()
    singles = {owner: one for owner, one in sequences.items() if isinstance(one, SingleSequence)}
    searches = {owner: one for owner, one in sequences.items() if isinstance(one, BeamSequences)}
    if singles:
        _select_singles(scores, [rows[owner][0] for owner in singles], list(singles.values()), normalised)
    if searches:
        _select_beams(scores, [rows[owner] for owner in searches], list(searches.values()), normalised)


def _select_singles(
    scores: Tensor, rows: Sequence[int], sequences: Sequence[SingleSequence], normalised: bool
) -> None:
    mine = _picked(scores, rows)
    tokens: list[int] = mine.argmax(-1).tolist()
    for at, sequence in enumerate(sequences):
        if sequence.processors is None and sequence.sampler is None:
            continue
        row = mine[at : at + 1]
        if sequence.processors is not None:
            row = apply(sequence.processors, [sequence.ids], row.clone())
        tokens[at] = int(row[0].argmax()) if sequence.sampler is None else sequence.sampler.draw(row[0])
    gained = mine.gather(1, torch.tensor(tokens, device=mine.device)[:, None])[:, 0]
    if not normalised:
        gained = gained - mine.logsumexp(-1)
    for sequence, token, one in zip(sequences, tokens, gained.tolist(), strict=True):
        sequence.take(token, one)


def _select_beams(
    scores: Tensor, rows: Sequence[Sequence[int]], sequences: Sequence[BeamSequences], normalised: bool
) -> None:
    own = _picked(scores, [row for mine in rows for row in mine])
    if not normalised:
        own = own.log_softmax(-1)
    processed = own
    if any(one.processors is not None for one in sequences):
        pieces = []
        begin = 0
        for one, mine in zip(sequences, rows, strict=True):
            piece = own[begin : begin + len(mine)]
            begin += len(mine)
            pieces.append(piece if one.processors is None else apply(one.processors, one.ids, piece.clone()))
        processed = torch.cat(pieces)
    running = torch.tensor([score for one in sequences for score in one.search.scores], device=own.device)
    most = min(max(one.search.candidates for one in sequences), own.shape[1])
    best, tokens = (processed + running[:, None]).topk(most)
    gained = own.gather(1, tokens).tolist()
    values, ids = best.tolist(), tokens.tolist()
    begin = 0
    for one, mine in zip(sequences, rows, strict=True):
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
