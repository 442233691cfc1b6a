"""Audit many queries: expected exposure and utility of sampled rankings."""
