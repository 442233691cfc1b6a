"""Observations: read, measure, store, acknowledge."""
