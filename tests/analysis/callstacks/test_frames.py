"""The kind of each frame, by its file and its function."""

import pytest

from memviz.analysis.callstacks.sites import FrameKind, frame_kinds, path_of
from tests.traces import alloc, frame, trace_of

SITE = "/home/u/.venv/lib/python3.12/site-packages"


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
