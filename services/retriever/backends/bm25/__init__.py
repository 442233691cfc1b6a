"""BM25 over postings that live in memory-mapped files."""
