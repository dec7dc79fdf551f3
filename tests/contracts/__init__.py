"""Golden files of what people and programs rely on, equal to the byte; `python -m tests.contracts` writes them anew."""
