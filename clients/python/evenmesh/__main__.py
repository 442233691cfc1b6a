"""``python -m evenmesh``: the command line."""

import sys

from evenmesh.commands import main

if __name__ == "__main__":
    sys.exit(main())
