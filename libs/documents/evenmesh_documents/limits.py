"""Bounds of what one file may cost."""

from dataclasses import dataclass, fields

from evenmesh_documents.document import UnreadableError


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one file; a file beyond one is named and skipped.

    Attributes:
        file_bytes: largest file. Bytes.
        unpacked_bytes: largest sum of what is packed in an archive, an Office or an EPUB file. Bytes.
        unpacked_ratio: largest ratio of unpacked to packed size, where more than 1 MiB is unpacked.
        entries: most files packed in one.
        archive_depth: archives within each other that are read; 1 reads none within another.
        pages: most pages, slides or sheets.
        characters: longest text.
        passages: most passages of a data set.
        memory_bytes: address space of the parser's process. Bytes.
        cpu_s: processor time for one file. Seconds.
        wall_s: time for one file. Seconds.

    Raises:
        ValueError: a bound is not positive.
    """

    file_bytes: int = 128 << 20
    unpacked_bytes: int = 512 << 20
    unpacked_ratio: int = 200
    entries: int = 10_000
    archive_depth: int = 2
    pages: int = 5_000
    characters: int = 50_000_000
    passages: int = 10_000_000
    memory_bytes: int = 2 << 30
    cpu_s: int = 60
    wall_s: int = 180

    def __post_init__(self) -> None:
        for one in fields(self):
            if getattr(self, one.name) <= 0:
                raise ValueError(f"{one.name} must be positive, is {getattr(self, one.name)}")

    def check_pages(self, count: int, what: str) -> None:
        """Raise where a file has too many pages.

        Raises:
            UnreadableError: it has more than :attr:`pages`.
        """
        if count > self.pages:
            raise UnreadableError(f"has {count:,} {what}, at most {self.pages:,} are read")
