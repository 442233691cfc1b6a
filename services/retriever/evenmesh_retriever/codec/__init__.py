"""Translate protos to the retriever's domain and back, and check every bound."""
