"""Stubs of the protos ``evenmesh.orchestrator``."""
