"""Observation stores behind ``evenmesh_evaluator.ports.ObservationStore``."""
