"""Search by learned sparse weights of vocabulary terms (SPLADE), with the engine of BM25."""
