"""Secure a service: TLS, credentials, roles."""
