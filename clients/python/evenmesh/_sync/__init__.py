# Generated from _async by generate_sync.py (make sdk). Do not edit.
"""The SDK for programs without an event loop."""
