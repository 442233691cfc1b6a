"""The bundled generator: MiniLM encoder, small decoder, pointer (copy) head; answers and ranks."""
