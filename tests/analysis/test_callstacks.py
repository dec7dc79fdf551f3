"""The call site of a stack."""

import random
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.analysis.callstacks.sites import (
    NO_SITE,
    NOWHERE,
    FrameKind,
    SiteKind,
    first_in_stack,
    frame_kinds,
    last_in_stack,
    last_place,
    only_places,
    path_of,
    short_native,
    shortest_tails,
    sites,
)
from memviz.analysis.callstacks.stack_tree import OTHER, StackTree, fold_plumbing, frame_name, stack_tree
from memviz.analysis.lifetimes import lifetimes, live_rows
from memviz.analysis.timeline import timeline
from memviz.trace.model import NO_STACK, Frames, Stacks, Trace
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


def test_stacks_that_meet_at_one_frame_share_a_site_and_no_stack_has_none():
    events = [alloc(1, 1, frames=[LINEAR, MODEL]), alloc(2, 1, frames=[MODEL, TRAIN]), alloc(3, 1, frames=[TRAIN])]
    table = sites(trace_of(events))
    assert table.of_stack.tolist()[0] == table.of_stack.tolist()[1] != table.of_stack.tolist()[2]
    assert len(table.sites) == 3
    assert table.of(NO_STACK) is NO_SITE
    assert NO_SITE.label == "no stack recorded"


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


def kind(name: str, filename: str) -> FrameKind:
    trace = trace_of([alloc(1, 1, frames=[frame(name, filename)])])
    return FrameKind(frame_kinds(trace)[0])


@pytest.mark.parametrize(
    "filename",
    [
        "train.py",
        "/home/u/torch/train.py",
        "/home/u/torch/lib/train.py",
        "D:\\work\\train.py",
        "/tmp/ipykernel_9/1234.py",
        "<ipython-input-3-0a>",
        "<stdin>",
        "/home/u/site-packages.py",
    ],
)
def test_a_persons_own_file_is_the_users(filename):
    assert kind("step", filename) is FrameKind.USER


@pytest.mark.parametrize(
    ("name", "filename", "expected"),
    [
        ("einsum", f"{SITE}/einops/einops.py", FrameKind.LIBRARY),
        ("einsum", "D:\\work\\.venv\\Lib\\site-packages\\einops\\einops.py", FrameKind.LIBRARY),
        ("load", "/usr/local/lib/python3.10/dist-packages/vllm/engine.py", FrameKind.LIBRARY),
        ("execute", "python/ray/_raylet.pyx", FrameKind.LIBRARY),
        ("einx", "/home/u/torch/lib/python3.10/site-packages/einx/x.py", FrameKind.LIBRARY),
        ("einsum", f"{SITE}/torch/functional.py", FrameKind.TORCH),
        ("einsum", "D:\\work\\.venv\\Lib\\site-packages\\torch\\functional.py", FrameKind.TORCH),
        ("forward", "/src/pytorch/torch/nn/modules/linear.py", FrameKind.TORCH),
        ("forward", "torch/nn/modules/linear.py", FrameKind.TORCH),
        ("call", "/tmp/torchinductor_u/qa/cqau.py", FrameKind.TORCH),
        ("forward", "<eval_with_key>.7", FrameKind.TORCH),
        ("_call_impl", f"{SITE}/torch/nn/modules/module.py", FrameKind.RELAY),
        ("_run_code", "/usr/lib/python3.9/runpy.py", FrameKind.RELAY),
        ("inner", "/opt/conda/lib/python3.11/contextlib.py", FrameKind.RELAY),
        ("_call_with_frames_removed", "<frozen importlib._bootstrap>", FrameKind.RELAY),
        ("<module>", "/home/u/.venv/bin/torchrun", FrameKind.RELAY),
        ("__init__", "<string>", FrameKind.RELAY),
        ("torch::autograd::generated::AddmmBackward0::apply(std::vector<at::Tensor>&&)", "??", FrameKind.NODE),
        ("torch::autograd::generated::DivBackward0_apply_functional(int)", "Functions.cpp", FrameKind.NODE),
        ("torch::autograd::AccumulateGrad::apply(std::vector<at::Tensor>&&)", "??", FrameKind.NODE),
        ("torch::autograd::generated::MulBackward0::release_variables()", "", FrameKind.NATIVE),
        ("torch::autograd::Engine::thread_main(int)", "??", FrameKind.ENGINE),
        ("at::_ops::addmm::call(at::Tensor const&)", "??", FrameKind.OPERATOR),
        ("at::_ops::empty_strided::call(int)", "??", FrameKind.PLUMBING),
        ("at::native::softmax(at::Tensor const&)", "??", FrameKind.NATIVE),
        ("torch::unwind::unwind()", "??", FrameKind.PLUMBING),
        ("c10::cuda::CUDACachingAllocator::Native::malloc(long)", "CUDACachingAllocator.cpp", FrameKind.PLUMBING),
        ("_PyEval_EvalFrameDefault", "/src/python-3.12/Python/bytecodes.c", FrameKind.PLUMBING),
        ("slot_nb_add", "/src/python-3.12/Objects/typeobject.c", FrameKind.PLUMBING),
        ("binary_op", "generated_cases.c.h", FrameKind.PLUMBING),
        ("_start", "??", FrameKind.PLUMBING),
        ("clone", "??", FrameKind.PLUMBING),
        ("", "", FrameKind.PLUMBING),
    ],
)
def test_other_frames_are_known_by_file_or_function(name, filename, expected):
    assert kind(name, filename) is expected


@pytest.mark.parametrize(
    ("filename", "path"),
    [
        ("train.py", "/train.py"),
        ("/a/b.py", "/a/b.py"),
        ("D:\\a\\b.py", "/D:/a/b.py"),
        ("/a/scripts/../lib/b.py", "/a/lib/b.py"),
        ("/a/./b.py", "/a/b.py"),
        ("../../b.py", "/b.py"),
        ("", "/"),
    ],
)
def test_paths_are_compared_with_forward_slashes_and_without_detours(filename, path):
    assert path_of(filename) == path


CAT = frame("cat", f"{SITE}/torch/functional.py", 5)
MAIN, LOOP, BLOCK = frame("main", "train.py", 1), frame("train", "train.py", 2), frame("forward", "model.py", 3)
MUL_NODE = frame("torch::autograd::generated::MulBackward0::apply(int)", "??", 0)
NATIVE = frame("at::_ops::mm::call(int)", "??", 0)
FUNCTIONAL_LINEAR = frame("linear", f"{SITE}/torch/nn/modules/linear.py")


def tree_of(trace: Trace, most_nodes: int = 10_000) -> StackTree:
    device = trace.devices[0]
    return stack_tree(trace, device, np.arange(len(lifetimes(device))), most_nodes=most_nodes)


def rows_of(trace: Trace, tree: StackTree) -> list[tuple[str, str, int, int, int]]:
    """Name, parent's name, bytes, own bytes and allocations of each node."""
    names = [frame_name(trace, int(code)) for code in tree.frame]
    parents = ["" if parent < 0 else names[parent] for parent in tree.parent]
    return list(zip(names, parents, tree.bytes.tolist(), tree.self_bytes.tolist(), tree.count.tolist(), strict=True))


@pytest.mark.parametrize(
    ("frames", "folded"),
    [
        ([NATIVE, CAT, FUNCTIONAL_LINEAR, CALL, BLOCK, CALL, MAIN], ["linear", "forward", "main"]),
        ([NATIVE, BLOCK, MAIN], ["forward", "main"]),
        ([NATIVE, BLOCK, EINOPS, CALL, MAIN], ["forward", "main"]),
        ([NATIVE, EINOPS, EINOPS, FUNCTIONAL_LINEAR], ["einsum"]),
        ([NATIVE, NATIVE], ["at::_ops::mm::call(int)"]),
    ],
)
def test_folding_keeps_the_users_frames_and_the_first_they_called(frames, folded):
    trace = trace_of([alloc(1, 1, frames=frames)])
    names = trace.stacks.frames.name
    assert [trace.strings[names[number]] for number in fold_plumbing(trace).of(0)] == folded


def test_the_outermost_frame_is_at_the_root_and_library_frames_fold():
    trace = trace_of(
        [
            alloc(1, 10, frames=[MALLOC, CAT, EINOPS, BLOCK, LOOP, MAIN]),
            alloc(2, 30, frames=[MALLOC, LOOP, MAIN]),
            alloc(3, 5, frames=[MALLOC, MUL_NODE]),
            alloc(4, 1),
        ]
    )
    assert rows_of(trace, tree_of(trace, 7)) == [
        ("all", "", 46, 0, 4),
        ("main", "all", 40, 0, 2),
        ("MulBackward0 (backward)", "all", 5, 5, 1),
        ("no stack recorded", "all", 1, 1, 1),
        ("train", "main", 40, 30, 2),
        ("forward", "train", 10, 0, 1),
        ("einsum", "forward", 10, 10, 1),
    ]


def test_a_function_that_calls_itself_stays_a_chain():
    trace = trace_of([alloc(1, 10, frames=[BLOCK, BLOCK, MAIN])])
    assert [name for name, *_ in rows_of(trace, tree_of(trace))] == ["all", "main", "forward", "forward"]


def test_pruned_nodes_lie_in_one_other_below_their_parent_which_comes_last():
    stacks = [[frame(f"f{i}", "a.py", i), MAIN] for i in range(5)]
    trace = trace_of([alloc(i, 10 - i, frames=frames) for i, frames in enumerate(stacks)])
    assert rows_of(trace, tree_of(trace, most_nodes=4)) == [
        ("all", "", 40, 0, 5),
        ("main", "all", 40, 0, 5),
        ("f0", "main", 10, 10, 1),
        ("(other)", "main", 30, 30, 4),
    ]


def test_no_rows_are_a_root_alone():
    trace = trace_of([alloc(1, 10, frames=[MAIN])])
    nothing = stack_tree(trace, trace.devices[0], np.zeros(0, dtype=np.int64))
    assert rows_of(trace, nothing) == [("all", "", 0, 0, 0)]


some_frames = st.lists(st.sampled_from([MALLOC, CAT, EINOPS, MAIN, LOOP, BLOCK, MUL_NODE]), max_size=6)
some_allocs = st.lists(st.tuples(st.integers(1, 1000), some_frames), min_size=1, max_size=12)


@given(some_allocs)
def test_own_bytes_are_those_of_the_stacks_that_end_there(allocs):
    trace = trace_of([alloc(i, size, frames=frames) for i, (size, frames) in enumerate(allocs)])
    tree, rows, stacks = tree_of(trace), lifetimes(trace.devices[0]), fold_plumbing(trace)
    of_stacks: dict[tuple[int, ...], int] = {}
    for stack, size in zip(rows.stack.tolist(), rows.size.tolist(), strict=True):
        path = tuple(stacks.of(stack).tolist()[::-1]) if stack >= 0 else (int(tree.frame.min()),)
        of_stacks[path] = of_stacks.get(path, 0) + size
    assert {node_path(tree, node): tree.self_bytes[node] for node in np.flatnonzero(tree.self_bytes)} == of_stacks


def node_path(tree: StackTree, node: int) -> tuple[int, ...]:
    return () if node == 0 else (*node_path(tree, int(tree.parent[node])), int(tree.frame[node]))


def pruned(tree: StackTree, most_nodes: int) -> list[tuple[int, ...]]:
    """The whole tree with its smallest nodes taken out, one after the other."""
    rows = range(len(tree))
    order = sorted(rows, key=lambda row: (-int(tree.bytes[row]), row))
    for many in range(len(tree), 0, -1):
        kept = set(order[:many])
        cut = [row for row in rows if row not in kept and int(tree.parent[row]) in kept]
        if many == 1 or many + len({int(tree.parent[row]) for row in cut}) <= most_nodes:
            break
    found = {
        node_path(tree, row): [int(tree.bytes[row]), int(tree.self_bytes[row]), int(tree.count[row])] for row in kept
    }
    for row in cut:
        other = found.setdefault((*node_path(tree, int(tree.parent[row])), OTHER), [0, 0, 0])
        for i, value in enumerate((tree.bytes[row], tree.bytes[row], tree.count[row])):
            other[i] += int(value)
    return sorted((*where, *values) for where, values in found.items())


@given(some_allocs, st.integers(2, 12))
def test_a_bound_leaves_the_largest_nodes_of_the_whole_tree(allocs, most_nodes):
    trace = trace_of([alloc(i, size % 7 + 1, frames=frames) for i, (size, frames) in enumerate(allocs)])
    whole, found = tree_of(trace), tree_of(trace, most_nodes)
    assert pruned(found, len(found)) == pruned(whole, most_nodes)
    assert len(found) <= most_nodes
    below = np.bincount(found.parent[1:], weights=found.bytes[1:], minlength=len(found))
    assert (found.self_bytes + below == found.bytes).all()
    assert (found.parent[1:] < np.arange(1, len(found))).all()


def test_pruned_nodes_are_never_made():
    luck = random.Random(1)
    frames = [frame(f"f{i}", "a.py", i) for i in range(300)]
    trace = trace_of([alloc(512 * i, 512, frames=luck.choices(frames, k=300)) for i in range(300)])
    tree_of(trace, most_nodes=3)
    tracemalloc.start()
    tree_of(trace, most_nodes=50)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 300 * 300 * 8, "more than one number for a frame of each stack"


FRAMES = 4


def stacks_of(lists: list[list[int]]) -> Stacks:
    names = np.arange(FRAMES, dtype=np.int32)
    offsets = np.cumsum([0, *map(len, lists)])
    return Stacks(Frames(names, names, names), offsets, np.array(sum(lists, []), dtype=np.int32))


some_stacks = st.lists(st.lists(st.integers(0, FRAMES - 1), max_size=4), max_size=5)
marked_frames = st.lists(st.booleans(), min_size=FRAMES, max_size=FRAMES).map(np.array)


@given(some_stacks, marked_frames)
def test_places_are_those_a_loop_finds(lists, frames):
    stacks, first, last, at = stacks_of(lists), [], [], 0
    for each in lists:
        places = [at + i for i, frame in enumerate(each) if frames[frame]]
        first.append(places[0] if places else NOWHERE)
        last.append(places[-1] if places else NOWHERE)
        at += len(each)
    assert first_in_stack(stacks, frames).tolist() == first
    assert last_in_stack(stacks, frames).tolist() == last
    assert last_place(stacks, frames[stacks.indices]).tolist() == last


@given(some_stacks, marked_frames)
def test_stacks_keep_their_numbers_when_frames_are_left_out(lists, frames):
    stacks = stacks_of(lists)
    left = only_places(stacks, frames[stacks.indices])
    kept = [left.of(i).tolist() for i in range(len(left))]
    assert kept == [[frame for frame in each if frames[frame]] for each in lists]
