"""The call site of a stack."""

from collections import Counter

import numpy as np
import pytest

from memviz.analysis.callstacks.sites import NO_SITE, SiteKind, short_native, shortest_tails, sites
from memviz.analysis.lifetimes import lifetimes, live_rows
from memviz.analysis.timeline import timeline
from memviz.trace.model import NO_STACK
from tests.real import each_real_file, read_once, requires_real
from tests.traces import alloc, frame, trace_of

SITE = "/home/u/.venv/lib/python3.12/site-packages"
UNWIND = frame("torch::unwind::unwind()", "??", 0)
MALLOC = frame("c10::cuda::CUDACachingAllocator::Native::malloc(long)", "CUDACachingAllocator.cpp", 0)
EMPTY = frame("at::_ops::empty_strided::call(c10::ArrayRef<long>)", "??", 0)
ADDMM = frame("at::_ops::addmm::call(at::Tensor const&)", "??", 0)
NODE = frame("torch::autograd::generated::AddmmBackward0::apply(std::vector<at::Tensor>&&)", "??", 0)
ENGINE = frame("torch::autograd::Engine::thread_main(int)", "??", 0)
EVAL = frame("_PyEval_EvalFrameDefault", "/src/Python/bytecodes.c", 3391)
LINEAR = frame("forward", f"{SITE}/torch/nn/modules/linear.py", 125)
CALL = frame("_call_impl", f"{SITE}/torch/nn/modules/module.py", 1790)
ADAM = frame("adam", f"{SITE}/torch/optim/adam.py", 970)
STEP = frame("step", f"{SITE}/torch/optim/adam.py", 247)
WRAPPER = frame("wrapper", f"{SITE}/torch/optim/optimizer.py", 526)
EINOPS = frame("einsum", f"{SITE}/einops/einops.py", 916)
MODEL = frame("forward", "/home/u/proj/model.py", 66)
TRAIN = frame("train_step", "/home/u/proj/train.py", 118)
CPP = [UNWIND, MALLOC, EMPTY, ADDMM]


@pytest.mark.parametrize(
    ("frames", "kind", "label"),
    [
        ([*CPP, EVAL, LINEAR, CALL, MODEL, CALL, TRAIN], SiteKind.USER, "model.py:66 forward"),
        ([*CPP, EINOPS, LINEAR, CALL], SiteKind.LIBRARY, "einops.py:916 einsum"),
        ([*CPP, ADAM, STEP, WRAPPER], SiteKind.TORCH, "adam.py:247 step"),
        ([*CPP, NODE, ENGINE], SiteKind.BACKWARD, "AddmmBackward0 (backward)"),
        ([*CPP, ENGINE], SiteKind.BACKWARD, "autograd engine (backward)"),
        ([*CPP, TRAIN, NODE, ENGINE], SiteKind.USER, "train.py:118 train_step"),
        (CPP, SiteKind.NATIVE, "at::_ops::addmm"),
        ([UNWIND, MALLOC], SiteKind.NATIVE, "torch::unwind::unwind"),
        ([frame("init_gpu_context", "driver.py", 2**64 - 1)], SiteKind.USER, "driver.py init_gpu_context"),
    ],
)
def test_the_site_is_the_users_innermost_frame_or_the_next_best(frames, kind, label):
    found = sites(trace_of([alloc(1, 1, frames=frames)])).of(0)
    assert (found.kind, found.label) == (kind, label)


def test_without_a_stack_there_is_no_site():
    table = sites(trace_of([alloc(1, 1)]))
    assert table.of(NO_STACK) is NO_SITE
    assert NO_SITE.label == "no stack recorded"


def test_stacks_that_meet_at_one_frame_share_a_site():
    events = [alloc(1, 1, frames=[LINEAR, MODEL]), alloc(2, 1, frames=[MODEL, TRAIN]), alloc(3, 1, frames=[TRAIN])]
    table = sites(trace_of(events))
    assert table.of_stack.tolist()[0] == table.of_stack.tolist()[1] != table.of_stack.tolist()[2]
    assert len(table.sites) == 3


def test_labels_tell_files_of_one_name_apart():
    events = [alloc(i, 1, frames=[frame("f", path, 1)]) for i, path in enumerate(["/p/a/x.py", "/p/b/x.py", "/p/y.py"])]
    labels = {each.label for each in sites(trace_of(events)).sites}
    assert labels == {"a/x.py:1 f", "b/x.py:1 f", "y.py:1 f", "no stack recorded"}


def test_shortest_tails_fall_back_to_the_whole_path():
    assert shortest_tails(["/x.py", "/a/x.py", "/b/a/x.py"]) == {
        "/x.py": "x.py",
        "/a/x.py": "a/x.py",
        "/b/a/x.py": "b/a/x.py",
    }


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("at::_ops::mm::call(at::Tensor const&)", "at::_ops::mm::call"),
        ("void at::cuda::blas::gemm<c10::BFloat16>(char)", "at::cuda::blas::gemm"),
        ("at::native::(anonymous namespace)::f(int)", "at::native::f"),
        ("clone", "clone"),
        ("", ""),
    ],
)
def test_functions_of_cpp_are_shown_without_types(name, short):
    assert short_native(name) == short


@requires_real
@each_real_file
def test_stacks_of_real_programs_land_on_a_line_of_the_user_or_a_backward_node(path):
    """Other scripts put all of it on torch::unwind."""
    trace = read_once(path)
    table, kinds = sites(trace), Counter[SiteKind]()
    for device in trace.devices:
        rows = live_rows(device, timeline(device).peak_event)
        for stack, size in zip(lifetimes(device).stack[rows], lifetimes(device).size[rows], strict=True):
            kinds[table.of(int(stack)).kind] += int(size)
    recorded = kinds.total() - kinds[SiteKind.NONE]
    assert kinds[SiteKind.USER] + kinds[SiteKind.BACKWARD] == recorded
    assert np.isin(table.of_stack, range(len(table.sites))).all()
