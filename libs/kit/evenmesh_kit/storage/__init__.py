"""Store data durably: SQL databases, migrations, failures, files."""
