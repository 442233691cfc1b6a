"""Stubs of the protos ``evenmesh.common``."""
