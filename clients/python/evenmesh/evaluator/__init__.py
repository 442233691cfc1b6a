"""Stubs of the protos ``evenmesh.evaluator``."""
