"""`python -m tests.forking MODULE ...` is `python -m MODULE ...`, with the processes of its runs forked from it.

For what is forked from a process that has PyTorch, and starts runs of its own.
"""

import runpy
import sys

from tests import forked

forked.runs_from_here()
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
