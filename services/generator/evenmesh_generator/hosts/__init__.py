"""Places where models run: the settings choose one, and only its libraries are loaded."""
