"""Writing a segment from passages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from services.retriever.backends.bm25 import postings
from services.retriever.backends.segments import attributes, durable, faults, records
from services.retriever.backends.segments.arrays import ArrayWriter
from services.retriever.backends.segments.hashes import HashIndex, hashes_of
from services.retriever.backends.segments.manifest import MANIFEST, SegmentManifest
from services.retriever.backends.segments.records import Record
from services.retriever.backends.segments.segment import ARRAYS, POSTINGS
from services.retriever.backends.segments.terms import TermTable
from services.retriever.domain import Passage
from services.retriever.ports import Analyzer


def write(
    folder: Path,
    passages: Sequence[Passage],
    stored: Sequence[Record],
    analyzer: Analyzer,
    checkpoint: Callable[[], None],
) -> SegmentManifest:
    """Writes a segment into an empty folder; on disk when it returns. Costs what the passages hold.

    Args:
        folder: where to write.
        passages: 1 or more, by ascending id.
        stored: their stored forms.
        analyzer: makes their tokens.
        checkpoint: called now and then; what it raises ends the work.
    """
    with ArrayWriter(folder / ARRAYS, checkpoint) as writer:
        for name, array in records.arrays(stored).items():
            writer.add(name, array)
        faults.point("ingest.half-written")
        ids = hashes_of(record[0] for record in stored)
        for name, array in HashIndex.arrays("ids", ids).items():
            writer.add(name, array)
        contents = hashes_of(passage.content.encode() for passage in passages)
        for name, array in HashIndex.arrays("contents", contents).items():
            writer.add(name, array)
        for name, array in attributes.arrays(attributes.entries_of(passages)).items():
            writer.add(name, array)

        def tokens_of(passage: Passage) -> list[str]:
            checkpoint()
            return analyzer.tokens(passage.content)

        lexical = postings.build(map(tokens_of, passages))
        for name, array in TermTable.arrays(term.encode() for term in lexical.terms):
            writer.add(name, array)
        for field in POSTINGS:
            writer.add(f"postings.{field}", getattr(lexical, field))
        file = writer.finish()
    manifest = SegmentManifest(
        num_passages=len(passages),
        num_tokens=int(lexical.lengths.sum(dtype="int64")),
        passage_bytes=sum(len(field) for record in stored for field in record),
        analyzer=analyzer.name,
        file=file,
    )
    durable.write(folder / MANIFEST, manifest.serialized())
    faults.point("ingest.written")
    return manifest
