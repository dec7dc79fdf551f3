"""Importing this imports what a run needs, for the process that tests fork runs from."""

import torch.utils.flop_counter  # noqa: F401  (every prediction imports it)

import memviz.commands.command_line
import memviz.commands.predict
import memviz.commands.run
import memviz.runner.predicted_script  # noqa: F401
from memviz.runner.jobs.worker import warm_up

warm_up()
