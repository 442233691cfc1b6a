"""Read documents and split them into passages."""

from evenmesh_documents.document import Block, Document, Kind, Link, UnreadableError
from evenmesh_documents.limits import Limits
from evenmesh_documents.parsing.parsers import Parsed, Parsers
from evenmesh_documents.readers import read
from evenmesh_documents.source import Source
from evenmesh_documents.splitting import Chunk, Splitting, split

__all__ = [
    "Block",
    "Chunk",
    "Document",
    "Kind",
    "Limits",
    "Link",
    "Parsed",
    "Parsers",
    "Source",
    "Splitting",
    "UnreadableError",
    "read",
    "split",
]
