"""Call model servers of other projects over HTTP: JSON requests, server-sent events, several endpoints."""
