"""Stubs of the protos ``evenmesh.generator.v1``, generated."""
