"""Translate between protobuf messages and the types of :mod:`evenmesh.types`."""
