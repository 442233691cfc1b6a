"""Requests as tokens, and tokens as text."""
