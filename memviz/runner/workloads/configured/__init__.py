"""Any model of transformers, from its `config.json`: built on the spot, with random weights and nobody's code."""

from memviz.runner.workloads.configured.configured_model import ConfiguredModel, configured_workload

__all__ = ["ConfiguredModel", "configured_workload"]
