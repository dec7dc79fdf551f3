"""Importing this imports what a run needs, for the process that tests fork runs from."""

from memviz.runner.jobs.worker import warm_up

warm_up()
