"""Scaffolding every ragmesh service shares: server, channels, deadlines, errors, settings, telemetry."""
