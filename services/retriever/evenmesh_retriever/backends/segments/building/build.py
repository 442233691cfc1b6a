"""Write a segment from passages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from evenmesh_kit.storage import durable_files
from evenmesh_retriever.backends.bm25 import postings
from evenmesh_retriever.backends.segments.files import attributes, faults, records
from evenmesh_retriever.backends.segments.files.arrays import ArrayWriter
from evenmesh_retriever.backends.segments.files.hashes import HashIndex, hashes_of
from evenmesh_retriever.backends.segments.files.manifest import MANIFEST, SegmentManifest
from evenmesh_retriever.backends.segments.files.records import Record
from evenmesh_retriever.backends.segments.files.segment import ARRAYS, POSTINGS
from evenmesh_retriever.backends.segments.files.terms import TermTable
from evenmesh_retriever.domain import Passage
from evenmesh_retriever.ports import Analyzer


def write(
    folder: Path,
    passages: Sequence[Passage],
    stored: Sequence[Record],
    analyzer: Analyzer,
    checkpoint: Callable[[], None],
) -> SegmentManifest:
    """Write a segment into an empty folder; on disk when it returns. Costs what the passages hold.

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
    durable_files.write(folder / MANIFEST, manifest.serialized())
    faults.point("ingest.written")
    return manifest
