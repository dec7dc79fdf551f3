"""Implementation of `memviz.pytest_plugin`, loaded on use: the memory of one test, its limit, the index of pages."""
