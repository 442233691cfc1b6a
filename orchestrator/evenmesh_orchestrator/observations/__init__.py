"""Deliver one observation for every ask to the evaluator."""
