"""Feedback of agents: taking it in, keeping it, and telling what of it can be learned from."""
