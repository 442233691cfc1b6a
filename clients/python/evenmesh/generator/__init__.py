"""Stubs of the protos ``evenmesh.generator``."""
