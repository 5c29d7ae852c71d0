"""`python -m hyla` is `hyla`."""

import sys

from hyla.cli import main

if __name__ == "__main__":
    sys.exit(main())
