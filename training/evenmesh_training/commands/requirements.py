"""What the commands need that an installation may lack."""

from importlib.util import find_spec

from evenmesh.commands.failure import INSTALL, CommandError


def with_training() -> None:
    """Check that what training needs is installed.

    Raises:
        CommandError: it is not.
    """
    missing = [
        name
        for name in ("torch", "transformers", "accelerate", "peft", "bm25s", "tensorboard")
        if not find_spec(name)
    ]
    if missing:
        raise CommandError(f"training needs {', '.join(missing)}: {INSTALL}")
