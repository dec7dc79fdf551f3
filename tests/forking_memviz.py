"""`python -m memviz` in a process forked from one that has PyTorch: those of its runs are forked from it in turn."""

import runpy

from tests import forked

forked.runs_from_here()
runpy.run_module("memviz", run_name="__main__", alter_sys=True)
