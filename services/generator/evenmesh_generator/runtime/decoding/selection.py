"""Select the next tokens of all rows of the batch: greedy, sampled and beam search together.

Shapes: N rows, V vocabulary, M rows of beams.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from evenmesh_generator.runtime.decoding.beams import Candidate
from evenmesh_generator.runtime.decoding.rules import TokenChoice, apply, only_choice
from evenmesh_generator.runtime.decoding.sampler import Sampler
from evenmesh_generator.runtime.decoding.sequences import BeamSequences, SingleSequence
from evenmesh_kit.compute.placement import upload


def select_tokens(
    logits: Tensor,
    rows: Mapping[int, Sequence[int]],
    sequences: Mapping[int, SingleSequence | BeamSequences],
    *,
    normalised: bool,
) -> None:
    """Select the next token of every answer.

    What was selected comes to the host in one piece: it waits for the device once a step. A draw of an
    unlikely token waits once more.

    Args:
        logits: scores [N, V] of the model.
        rows: row of every beam of every answer.
        sequences: the answers.
        normalised: whether the scores are log-probabilities already.
    """
    scores = logits.float()
    singles = {owner: one for owner, one in sequences.items() if isinstance(one, SingleSequence)}
    searches = {owner: one for owner, one in sequences.items() if isinstance(one, BeamSequences)}
    pieces: list[Tensor] = []
    if singles:
        alone = _Singles(
            scores, [rows[owner][0] for owner in singles], list(singles.values()), normalised=normalised
        )
        pieces.append(alone.found)
    if searches:
        searched = _searched(
            scores, [rows[owner] for owner in searches], list(searches.values()), normalised=normalised
        )
        pieces.append(searched)
    # Double precision holds tokens and single-precision scores as they are.
    read: list[float] = torch.cat([one.reshape(-1) for one in pieces]).tolist() if pieces else []
    if singles:
        alone.take(read[: alone.found.numel()])
        read = read[alone.found.numel() :]
    if searches:
        _take_searched(read, list(searched.shape), list(searches.values()))


class _Singles:
    """The next tokens of greedy and sampled answers.

    ``found`` [3, M]: tokens, their log-probabilities, and whether the token is certain.
    """

    def __init__(
        self, scores: Tensor, rows: Sequence[int], sequences: Sequence[SingleSequence], *, normalised: bool
    ) -> None:
        self._sequences = sequences
        self._normalised = normalised
        self._mine = mine = _picked(scores, rows)
        self._draws: dict[int, tuple[Sampler, Tensor, float]] = {}
        """Of sampled answers the sampler, the scores [V] and the number that picks."""
        tokens = mine.argmax(-1)
        certain = torch.ones_like(tokens, dtype=torch.bool)
        special = [at for at, one in enumerate(sequences) if one.processors or one.sampler]
        if special:
            chosen = list(tokens.unbind())
            sure = list(certain.unbind())
            for at in special:
                sequence = sequences[at]
                row = mine[at : at + 1]
                choice = only_choice(sequence.processors)
                if choice is not None and sequence.sampler is None:
                    allowed = upload(choice.allowed([sequence.ids])[0], row.device)
                    chosen[at] = allowed[row[0, allowed].argmax()]
                    continue
                if sequence.processors is not None:
                    row = apply(sequence.processors, [sequence.ids], row.clone())
                if sequence.sampler is None:
                    chosen[at] = row[0].argmax()
                else:
                    uniform = sequence.sampler.uniform()
                    chosen[at], sure[at] = sequence.sampler.pick(row[0], uniform)
                    self._draws[at] = sequence.sampler, row[0], uniform
            tokens, certain = torch.stack(chosen), torch.stack(sure)
        self.found = torch.stack([tokens.double(), self._gained(mine, tokens).double(), certain.double()])

    def take(self, read: Sequence[float]) -> None:
        """Add the tokens to their answers, given :attr:`found`."""
        count = len(self._sequences)
        tokens = [int(one) for one in read[:count]]
        gained = list(read[count : 2 * count])
        unlikely = [at for at in self._draws if not read[2 * count + at]]
        if unlikely:
            drawn = torch.stack(
                [
                    sampler.pick_slowly(scores, uniform)
                    for sampler, scores, uniform in map(self._draws.__getitem__, unlikely)
                ]
            )
            own = self._gained(_picked(self._mine, unlikely), drawn)
            pairs = torch.stack([drawn.double(), own.double()], 1).tolist()
            for at, (token, one) in zip(unlikely, pairs, strict=True):
                tokens[at], gained[at] = int(token), one
        for sequence, token, one in zip(self._sequences, tokens, gained, strict=True):
            sequence.take(token, one)

    def _gained(self, mine: Tensor, tokens: Tensor) -> Tensor:
        """Return the log-probabilities [M] of tokens [M] in the model's own distribution."""
        gained = mine.gather(1, tokens[:, None])[:, 0]
        return gained if self._normalised else gained - mine.logsumexp(-1)


def _searched(
    scores: Tensor, rows: Sequence[Sequence[int]], sequences: Sequence[BeamSequences], *, normalised: bool
) -> Tensor:
    """Return the best candidates of every beam: scores, tokens and log-probabilities, [3, M, count]."""
    running = upload([score for one in sequences for score in one.search.scores], scores.device)[:, None]
    most = min(max(one.search.candidates for one in sequences), scores.shape[1])
    choices = [choice for one in sequences if (choice := only_choice(one.processors)) is not None]
    if normalised and len(choices) == len(sequences):
        return _chosen(scores, rows, sequences, choices, running, most)
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
    best, tokens = (processed + running).topk(most)
    return torch.stack([best.double(), tokens.double(), own.gather(1, tokens).double()])


def _chosen(
    scores: Tensor,
    rows: Sequence[Sequence[int]],
    sequences: Sequence[BeamSequences],
    choices: Sequence[TokenChoice],
    running: Tensor,
    most: int,
) -> Tensor:
    """Return what :func:`_searched` does where few tokens may follow: of log-probabilities, only theirs."""
    places: list[list[int]] = []
    tokens: list[list[int]] = []
    for one, mine, choice in zip(sequences, rows, choices, strict=True):
        tokens += choice.allowed(one.ids)
        places += [[row * scores.shape[1]] for row in mine]
    widest = max(most, *map(len, tokens))
    # Whoever has fewer gets a token that ends nothing, with a score that cannot win.
    filler = next(token for token in range(scores.shape[1]) if token not in sequences[0].search.ends)
    padded = upload([[*mine, *[filler] * (widest - len(mine))] for mine in tokens], scores.device)
    filled = upload([[len(mine)] for mine in tokens], scores.device)
    own = scores.reshape(-1)[padded + upload(places, scores.device)]
    beyond = torch.arange(widest, device=scores.device) >= filled
    best, at = (own + running).masked_fill(beyond, float("-inf")).topk(most)
    return torch.stack([best.double(), padded.gather(1, at).double(), own.gather(1, at).double()])


def _take_searched(read: Sequence[float], shape: Sequence[int], sequences: Sequence[BeamSequences]) -> None:
    """Add the candidates of :func:`_searched` to their answers."""
    _, beams, most = shape
    size = beams * most
    begin = 0
    for one in sequences:
        width, count = len(one.search.scores), min(one.search.candidates, most)
        places = [(beam, (begin + beam) * most + at) for beam in range(width) for at in range(count)]
        one.take(
            [
                Candidate(read[place], beam, int(read[size + place]), read[2 * size + place])
                for beam, place in places
            ]
        )
        begin += width


def _picked(scores: Tensor, rows: Sequence[int]) -> Tensor:
    if list(rows) == list(range(len(scores))):
        return scores
    return scores.index_select(0, upload(rows, scores.device))
