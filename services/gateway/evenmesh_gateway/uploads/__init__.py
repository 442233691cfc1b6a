"""Uploads of documents: files of a form in, passages of a collection out."""
