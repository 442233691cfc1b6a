"""The cross-encoder that ships: what it starts from, how it was trained, and how it is put together again."""
