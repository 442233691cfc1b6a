"""What every service shares: server, admission, security, settings, storage and telemetry."""
