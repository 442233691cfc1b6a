"""Conversations on many topics, held several times: asked, written down for a person to correct, compared."""
