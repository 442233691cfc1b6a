"""The lifecycle of a server that has nothing to load."""


class Idle:
    """A lifecycle with nothing to do."""

    async def start(self) -> None:
        """Load nothing."""

    async def stop(self) -> None:
        """Release nothing."""
