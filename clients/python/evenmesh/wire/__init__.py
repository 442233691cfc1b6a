"""Speak gRPC with a mesh: channels, credentials, deadlines and errors. Services build on it too."""
