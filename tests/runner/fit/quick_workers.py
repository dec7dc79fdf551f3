"""Importing this has the processes of runs forked, as in the tests themselves; for workers of Dask."""

from memviz.runner.jobs import worker_process
from tests import forked

if forked.CAN_FORK_RUNS:
    worker_process.start_python = forked.start_python
