"""The SDK for programs with an event loop. ``_sync`` is generated from it: ``make sdk``."""
