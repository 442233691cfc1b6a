"""``evenmesh`` and ``python -m evenmesh``: the command line."""

import sys
from typing import Final

_INTERRUPTED: Final = 130


def main() -> int:
    """Run one command and return its exit status; Ctrl-C while it is loaded ends it as quietly as later."""
    try:
        from evenmesh.commands import main as run
    except KeyboardInterrupt:
        return _INTERRUPTED
    return run()


if __name__ == "__main__":
    sys.exit(main())
