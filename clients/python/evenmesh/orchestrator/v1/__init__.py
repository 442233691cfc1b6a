"""Stubs of the protos ``evenmesh.orchestrator.v1``, generated."""
