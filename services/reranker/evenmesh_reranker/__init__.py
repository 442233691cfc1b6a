"""The reranker: cross-encoders and RankRAG scoring behind one call."""
