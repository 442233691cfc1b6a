"""Which rows of the batch belong to which request."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence


class Layout:
    """Rows 0 … n - 1 without gaps; a request's rows, one per beam, may lie anywhere among them."""

    def __init__(self) -> None:
        self._rows: dict[int, list[int]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._count

    @property
    def rows(self) -> Mapping[int, Sequence[int]]:
        """Return the row of every beam of every request."""
        return self._rows

    def add(self, owner: int, width: int) -> None:
        """Add a request's rows at the end."""
        self._rows[owner] = list(range(self._count, self._count + width))
        self._count += width

    def settle(self, parents: Mapping[int, Sequence[int]], leaving: Collection[int]) -> list[int]:
        """Fork beams and remove requests, moving as few rows as possible.

        Args:
            parents: for some requests, the beam each beam goes on from.
            leaving: requests that are done.

        Returns:
            For every row there is now, the row whose content it takes.
        """
        sources = list(range(self._count))
        for owner, beams in parents.items():
            if owner not in leaving:
                self._fork(owner, beams, sources)
        holes = sorted(row for owner in leaving for row in self._rows.pop(owner))
        self._count -= len(holes)
        # What lies behind the new end moves into the holes before it.
        place = dict(
            zip((row for row in range(self._count, len(sources)) if row not in holes), holes, strict=False)
        )
        for tail, hole in place.items():
            sources[hole] = sources[tail]
        if place:
            for rows in self._rows.values():
                for beam, row in enumerate(rows):
                    rows[beam] = place.get(row, row)
        return sources[: self._count]

    def _fork(self, owner: int, beams: Sequence[int], sources: list[int]) -> None:
        """Fork beams: the first child of a beam keeps its row, the others take rows without children."""
        old = self._rows[owner]
        kept = set(beams)
        free = [old[beam] for beam in range(len(old)) if beam not in kept]
        taken: set[int] = set()
        rows = []
        for beam in beams:
            if beam in taken:
                row = free.pop()
                sources[row] = old[beam]
            else:
                row = old[beam]
                taken.add(beam)
            rows.append(row)
        self._rows[owner] = rows
