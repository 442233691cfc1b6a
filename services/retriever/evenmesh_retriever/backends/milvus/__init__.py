"""Keep collections in Milvus, for more than one machine or process serves. See docs/guides/milvus.md."""
