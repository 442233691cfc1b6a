"""Analyse measured times: knees, comparisons, queueing predictions, capacity."""
