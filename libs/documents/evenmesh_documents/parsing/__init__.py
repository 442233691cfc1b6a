"""Processes that read files: one side runs in them, the other starts and bounds them."""
