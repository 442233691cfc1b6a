"""Loops that run the requests of one model, each in its own thread."""
