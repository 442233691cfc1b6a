"""Conversations: turns that build on each other, and their joint relevance and group fairness (GFRC)."""
