"""Learned sparse retrieval: passages and queries as weights of vocabulary terms, in the engine of BM25."""
