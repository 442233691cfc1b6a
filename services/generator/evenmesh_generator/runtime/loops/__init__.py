"""Loops that run the requests of one model, each in a thread of its own."""
