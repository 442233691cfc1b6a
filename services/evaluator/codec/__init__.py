"""Protos to domain and back, and the bounds of evaluator.proto, each enforced with the field named."""
