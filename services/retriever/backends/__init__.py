"""What the retriever's ports are filled with."""
