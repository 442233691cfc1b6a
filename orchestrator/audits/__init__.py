"""Audits: many rankings of one labelled query, and what each led to (Kim and Diaz, "Towards Fair RAG")."""
