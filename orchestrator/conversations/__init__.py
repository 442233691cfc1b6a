"""Conversations: turns that know of each other, and how relevant and fair they are together (GFRC)."""
