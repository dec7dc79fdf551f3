"""`python -m memviz`."""

import sys

from memviz.commands import main

if __name__ == "__main__":
    sys.exit(main())
