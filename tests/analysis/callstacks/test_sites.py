"""The call site of a stack."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from memviz.analysis.callstacks.frames import SiteRule
from memviz.analysis.callstacks.sites import NO_SITE, Site, SiteKind, short_native, shortest_tails, sites
from memviz.analysis.lifetimes import lifetimes, live_rows
from memviz.analysis.timeline import timeline
from memviz.trace.load import load_trace
from memviz.trace.model import NO_STACK
from tests.real import real_files, requires_real
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


def site(*frames, rule: SiteRule | None = None) -> Site:
    trace = trace_of([alloc(1, 1, frames=list(frames))])
    return sites(trace, rule or SiteRule()).of(0)


def test_the_innermost_frame_of_the_user_is_the_site():
    found = site(*CPP, EVAL, LINEAR, CALL, MODEL, CALL, TRAIN)
    assert found == Site(SiteKind.USER, "forward", "/home/u/proj/model.py", 66, "model.py:66 forward")


def test_without_the_users_the_innermost_library_is_the_site():
    assert site(*CPP, EINOPS, LINEAR, CALL).label == "einops.py:916 einsum"
    assert site(*CPP, EINOPS, LINEAR, CALL).kind is SiteKind.LIBRARY


def test_with_torch_alone_its_outermost_meaningful_frame_is_the_site():
    found = site(*CPP, ADAM, STEP, WRAPPER)
    assert (found.kind, found.label) == (SiteKind.TORCH, "adam.py:247 step")


def test_on_autograds_thread_the_backward_node_is_the_site():
    name = "AddmmBackward0 (backward)"
    assert site(*CPP, NODE, ENGINE) == Site(SiteKind.BACKWARD, name, label=name)


def test_a_gradient_that_no_node_made_is_the_engines():
    assert site(*CPP, ENGINE).label == "autograd engine (backward)"


def test_a_hook_of_the_user_on_autograds_thread_is_the_users():
    assert site(*CPP, TRAIN, NODE, ENGINE).kind is SiteKind.USER


def test_without_python_the_operator_that_needed_the_memory_is_the_site():
    assert site(*CPP) == Site(SiteKind.NATIVE, "at::_ops::addmm", label="at::_ops::addmm")


def test_a_stack_of_nothing_but_plumbing_shows_its_innermost_frame():
    assert site(UNWIND, MALLOC).label == "torch::unwind::unwind"


def test_without_a_stack_there_is_no_site():
    table = sites(trace_of([alloc(1, 1)]))
    assert table.of(NO_STACK) is NO_SITE
    assert NO_SITE.label == "no stack recorded"


def test_another_rule_finds_another_site():
    assert site(MODEL, TRAIN, rule=SiteRule(libraries=("/model.py",))).label == "train.py:118 train_step"


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


def test_sites_are_found_once_per_trace_and_rule():
    trace = trace_of([alloc(1, 1, frames=[TRAIN])])
    assert sites(trace) is sites(trace, SiteRule())
    assert sites(trace, SiteRule(mine=("x",))) is not sites(trace)


@requires_real
@pytest.mark.parametrize("path", real_files(), ids=lambda path: path.stem)
def test_stacks_of_real_programs_land_on_a_line_of_the_user_or_a_backward_node(path):
    """Other scripts put all of it on torch::unwind."""
    trace = load_trace(path)
    table, kinds = sites(trace), Counter[SiteKind]()
    for device in trace.devices:
        rows = live_rows(device, timeline(device).peak_event)
        for stack, size in zip(lifetimes(device).stack[rows], lifetimes(device).size[rows], strict=True):
            kinds[table.of(int(stack)).kind] += int(size)
    recorded = kinds.total() - kinds[SiteKind.NONE]
    assert kinds[SiteKind.USER] + kinds[SiteKind.BACKWARD] == recorded
    assert np.isin(table.of_stack, range(len(table.sites))).all()


def test_a_frame_without_a_line_is_named_without_one() -> None:
    trace = trace_of([alloc(0x7000_0000_0000, 1, frames=[frame("init_gpu_context", "driver.py", 2**64 - 1)])])
    assert [each.label for each in sites(trace).sites if each.path] == ["driver.py init_gpu_context"]
