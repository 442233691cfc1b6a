"""The generator: language models behind one contract, streaming, batched, and as judges of relevance."""
