"""The study of exposure without a generator: docs/studies/exposure.md, planned in the file beside it."""
