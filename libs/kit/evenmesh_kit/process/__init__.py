"""The process of a service: how it starts, serves and ends."""
