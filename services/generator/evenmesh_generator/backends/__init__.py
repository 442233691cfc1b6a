"""Engines that run language models."""
