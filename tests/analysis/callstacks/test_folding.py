"""Stacks without what a reader skips."""

from __future__ import annotations

from memviz.analysis.callstacks.frames import SiteRule
from memviz.analysis.callstacks.stack_tree import fold_plumbing
from tests.traces import alloc, frame, trace_of

SITE = "/home/u/.venv/lib/python3.12/site-packages"
NATIVE = frame("at::_ops::mm::call(int)", "??", 0)
FUNCTIONAL = frame("linear", f"{SITE}/torch/nn/functional.py")
LINEAR = frame("forward", f"{SITE}/torch/nn/modules/linear.py")
CALL = frame("_call_impl", f"{SITE}/torch/nn/modules/module.py")
EINOPS, MODEL, MAIN = frame("einsum", f"{SITE}/einops/einops.py"), frame("mlp", "model.py"), frame("main", "train.py")


def kept(*frames) -> list[str]:
    trace = trace_of([alloc(1, 1, frames=list(frames))])
    names = trace.stacks.frames.name
    return [trace.strings[names[each]] for each in fold_plumbing(trace, SiteRule()).of(0)]


def test_the_users_frames_stay_with_the_first_they_called():
    assert kept(NATIVE, FUNCTIONAL, LINEAR, CALL, MODEL, CALL, MAIN) == ["forward", "mlp", "main"]


def test_a_frame_that_called_nothing_but_cpp_stands_alone():
    assert kept(NATIVE, MODEL, MAIN) == ["mlp", "main"]


def test_libraries_between_the_users_frames_go():
    assert kept(NATIVE, MODEL, EINOPS, CALL, MAIN) == ["mlp", "main"]


def test_without_the_users_the_site_stays_once():
    assert kept(NATIVE, EINOPS, EINOPS, LINEAR) == ["einsum"]
    assert kept(NATIVE, NATIVE) == ["at::_ops::mm::call(int)"]


def test_stacks_keep_their_numbers():
    trace = trace_of([alloc(1, 1, frames=[MODEL]), alloc(2, 1, frames=[NATIVE, MAIN])])
    lengths = [len(fold_plumbing(trace, SiteRule()).of(stack)) for stack in range(len(trace.stacks))]
    assert lengths == [1, 1]
