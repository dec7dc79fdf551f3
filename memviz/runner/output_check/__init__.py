"""Checks that an optimization keeps the outputs, as it claims."""
