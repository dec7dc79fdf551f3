"""What a user writes for an operator that looks at values; torch knows it by another name."""

from __future__ import annotations

from typing import Any

from memviz.runner.predict.refusals import REMEDY

_SAYS = {
    "_local_scalar_dense": "a decision, an index or a number taken from a tensor",
    "equal": "torch.equal",
    "index": "a mask as an index",
    "nonzero": "nonzero (or torch.where with a condition alone)",
    "_unique2": "unique",
    "unique_dim": "unique",
    "_pack_padded_sequence": "pack_padded_sequence",
    "linalg_lstsq": "torch.linalg.lstsq",
    "_linalg_check_errors": "a check of a matrix",
    "_ctc_loss": "ctc_loss",
}


def word_for(func: Any) -> str:
    name: str = func.overloadpacket.__name__
    return _SAYS.get(name, name)


_REMEDIES = {"repeat_interleave": "Give it output_size, and its shape is known."}


def remedy_for(func: Any) -> str:
    return _REMEDIES.get(func.overloadpacket.__name__, REMEDY)
