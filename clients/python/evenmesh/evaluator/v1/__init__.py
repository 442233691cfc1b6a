"""Stubs of the protos ``evenmesh.evaluator.v1``, generated."""
