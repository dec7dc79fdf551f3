"""`python -m tests.contracts.narrow ...` is `python -m memviz ...`, with real outputs computed on narrow layers.

The golden files leave those numbers out (`FIGURES` in `workplace.py`), and on whole layers they take minutes;
`tests/runner/test_published.py` holds what they come to.
"""

import runpy
from collections.abc import Callable
from functools import partial, wraps
from typing import Any
from unittest.mock import patch

from memviz.runner import published


def on_narrow_layers(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def narrow(*given: Any) -> Any:
        with patch.object(published, "FeedForwardStack", partial(published.FeedForwardStack, dim=64)):
            return function(*given)

    return narrow


if __name__ == "__main__":
    published.split_differences = on_narrow_layers(published.split_differences)
    published.one_layer_difference = on_narrow_layers(published.one_layer_difference)
    runpy.run_module("memviz", run_name="__main__", alter_sys=True)
