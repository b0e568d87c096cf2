"""`python -m topics_engine` is the command line `topics`."""

import sys

from .cli.main import main

if __name__ == "__main__":
    sys.exit(main())
