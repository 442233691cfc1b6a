"""Stores of observations behind ``services.evaluator.ports.ObservationStore``."""
