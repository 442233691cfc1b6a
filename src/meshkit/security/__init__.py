"""Who may speak with a service, and how nobody else listens: TLS, credentials, roles."""
