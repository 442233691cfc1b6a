"""Versions of learned models: kept as immutable folders, promoted and rolled back while serving."""
