"""Collections in Milvus, for more passages or more processes than one machine serves. See docs/milvus.md."""
