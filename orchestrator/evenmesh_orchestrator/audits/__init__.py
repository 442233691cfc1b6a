"""Audits: many rankings of one labelled query, and their exposure and utility (Kim and Diaz, 2025)."""
