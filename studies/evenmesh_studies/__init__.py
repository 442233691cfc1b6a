"""Measure a running mesh: audits, ensembles, answering, conversations, labels, load."""
