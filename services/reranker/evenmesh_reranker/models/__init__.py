"""Learned models: immutable versions on disk, promoted and rolled back while the reranker serves."""
