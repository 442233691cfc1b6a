"""Stubs of the protos ``evenmesh.common.v1``, generated."""
