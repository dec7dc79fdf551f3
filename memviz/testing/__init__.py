"""What `memviz.pytest_plugin` does once a test asks for it: the memory of one test, its limit, the pages of all."""
