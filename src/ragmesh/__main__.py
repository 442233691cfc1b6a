"""``python -m ragmesh``: the command line."""

import sys

from ragmesh.cli import main

if __name__ == "__main__":
    sys.exit(main())
