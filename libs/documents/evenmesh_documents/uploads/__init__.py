"""Uploads: files of strangers that a service takes, gathered in a process of their own."""
