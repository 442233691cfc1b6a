"""What the gateway does of HTTP: the server, bodies, events, problems, and what every request passes."""
