"""`python -m tests.gpu --out OUT`: pytest on this folder alone, with nothing of tests/requirements.txt but pytest."""

import sys

import pytest

_ALONE = ["tests/gpu", "-m", "gpu", "-v", "-rs", "-o", "addopts=", "--confcutdir", "tests/gpu"]

sys.exit(pytest.main([*_ALONE, *sys.argv[1:]]))
