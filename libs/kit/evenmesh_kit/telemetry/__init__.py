"""Record traces, metrics and logs of a service."""
