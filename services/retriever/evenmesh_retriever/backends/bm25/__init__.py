"""Search by BM25 over postings in memory-mapped files."""
