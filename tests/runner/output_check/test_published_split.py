"""The split of gated feed-forwards as it was first published: its table shows 0.00015 and calls it equal.

Five plain layers with PyTorch's own initialization hide the error in the last bias; each layer alone shows it.
"""

import pytest
import torch

from memviz.runner.output_check.comparison import compare_outputs
from tests.runner.output_check.models import GEGLU, SwiGLU, split_wrongly, stack, tokens

each_kind = pytest.mark.parametrize("kind", [GEGLU, SwiGLU])
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
each_stack = pytest.mark.parametrize("residual", [False, True], ids=["plain", "residual"])


@each_kind
@each_dtype
@each_stack
@pytest.mark.parametrize("only_bias", [False, True], ids=["first version", "later version"])
def test_both_are_called_bugs_in_the_first_layer(kind, dtype, residual, only_bias):
    wrong = split_wrongly(only_bias=only_bias)
    build = stack(kind, residual=residual, dtype=dtype)
    found = compare_outputs(build, tokens(dtype=dtype), wrong, training=False, claim="rounding")
    said = found.verdict.sentence("Split feed-forward")
    assert found.verdict.ok is False
    assert found.verdict.place == ("layers.0.ff" if residual else "layers.0")
    where = "ff of layer 0" if residual else "layer 0"
    assert said.startswith(f"Split feed-forward claims equal output up to rounding, but {where} differs by ")
    assert said.endswith(" %. This is a bug, not rounding.")


def test_the_first_version_hides_in_plain_layers():
    """Its absolute difference looks like rounding; the same error with residuals does not."""
    split = split_wrongly(only_bias=False)
    hidden = compare_outputs(stack(sizes=(256, 1024)), tokens(8, 256), split, training=False, claim="rounding")
    output = hidden.outputs[0].difference
    assert output.absmax < 3e-3
    assert output.relative_l2 < 0.05
    assert hidden.layers[0].alone.relative_l2 > 1.3
    assert hidden.signal is not None and hidden.signal.words
