"""What a library's own code is answered where it asks for values that nobody computes, with the sentence that says so.

torch's own code needs some where every run that works gets the same answer: whether gradients overflowed, whether
the arguments of a distribution are valid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from memviz.runner.predict.program_frames import first_of_library


@dataclass(frozen=True)
class _Rule:
    file: str
    functions: tuple[str, ...]
    """Of that file; empty is any."""
    value: Callable[[FrameType], Any]
    sentence: str
    natural: tuple[type, ...] = ()
    """Kinds of answers for which what stands in is better than the value, where anything does."""


_SCALER = "A scaler of gradients is taken to find no overflow: every step is taken, and its scale stays as it began."
_TEXT = "Text is taken to go on to the greatest length allowed, without an end or padding before."
_DRAFTS = "Text is taken to go on to the greatest length allowed, and what is drafted for it to be accepted whole."
_GRADCHECK = "What gradcheck compares is taken to agree: gradients are not computed, only what checking them takes."
_GENERATION = "/transformers/generation/"
_RULES = (
    _Rule("torch/amp/grad_scaler.py", ("get_scale",), lambda frame: frame.f_locals["self"]._init_scale, _SCALER),
    _Rule("torch/amp/grad_scaler.py", ("_get_growth_tracker",), lambda frame: 0, _SCALER),
    _Rule("torch/amp/grad_scaler.py", (), lambda frame: 0.0, _SCALER),
    _Rule(
        "torch/distributions/distribution.py",
        (),
        lambda frame: True,
        "Arguments and samples of torch.distributions are taken to be valid.",
    ),
    _Rule(
        "torch/nn/init.py",
        (),
        lambda frame: False,
        "Random weights that have to lie within bounds are taken to do so when they are first drawn.",
    ),
    _Rule(
        "torch/nn/utils/clip_grad.py",
        (),
        lambda frame: False,
        "The norm of all gradients is taken to be a finite number.",
    ),
    _Rule(
        "/transformers/masking_utils.py",
        (),
        lambda frame: True,
        "Masks of attention that nobody computes are taken to hide nothing.",
    ),
    _Rule(
        "torch/__init__.py",
        ("_check_tensor_all_with",),
        lambda frame: True,
        "What a library checks of the values of a tensor (torch._check_tensor_all) is taken to hold.",
    ),
    _Rule("torch/utils/data/", (), lambda frame: 0, "Seeds that loaders of data draw on the card are taken to be 0."),
    _Rule("torch/testing/_comparison.py", (), lambda frame: True, "Values that are compared are taken to be close."),
    _Rule(
        "torch/autograd/gradcheck.py",
        ("_check_jacobians_equal", "_check_no_differentiable_outputs", "_check_no_differentiable_outputs_fast"),
        lambda frame: False,
        _GRADCHECK,
    ),
    _Rule(
        "torch/autograd/gradcheck.py",
        ("_allclose_with_type_promotion", "_test_backward_mul_by_grad_output", "check_undefined_grad_support"),
        lambda frame: True,
        _GRADCHECK,
    ),
    # Whether any beam goes on, which is known where the greatest length is reached, and how long the longest is.
    _Rule(_GENERATION, ("_beam_search",), lambda frame: True, _TEXT, natural=(int,)),
    _Rule(_GENERATION, ("_assisted_decoding",), lambda frame: False, _DRAFTS, natural=(int,)),
    _Rule(_GENERATION, ("_speculative_sampling",), lambda frame: False, _DRAFTS, natural=(int, bool)),
    _Rule(_GENERATION, (), lambda frame: False, _TEXT),
    _Rule("/transformers/models/whisper/generation", (), lambda frame: False, _TEXT),
)
"""The first that fits."""


@dataclass(frozen=True)
class LibraryAnswer:
    value: Any
    sentence: str


def library_answer(kind: type, stands: int | None) -> LibraryAnswer | None:
    """For the library that asks now for a value of this kind, if one does; None where it has to be refused."""
    frame = first_of_library()
    if frame is None:
        return None
    file, function = Path(frame.f_code.co_filename).as_posix(), frame.f_code.co_name
    for rule in _RULES:
        if rule.file in file and (not rule.functions or function in rule.functions):
            is_natural = stands is not None and kind in rule.natural
            return LibraryAnswer(kind(stands) if is_natural else rule.value(frame), rule.sentence)
    return None
