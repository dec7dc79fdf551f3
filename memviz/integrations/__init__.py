"""Trainers of other libraries: a few steps of theirs recorded. One file per library, which is imported there alone."""
