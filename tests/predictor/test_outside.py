"""Code outside a prediction says so: a small program for each row of the table in memviz/predictor/README.md."""

import re
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.scan import scan

from memviz.predictor.device import PredictedDevice
from tests.house.repository import text_of
from tests.predictor.rows import A100


def _extension() -> None:
    library = torch.library.Library("mine", "FRAGMENT")
    library.define("sum(Tensor x) -> Tensor")
    torch.ops.mine.sum(torch.ones(3, device="cuda"))


def _jiterator() -> None:
    square = torch.cuda.jiterator._create_jit_fn("template <typename T> T square(T x) { return x * x; }")
    square(torch.ones(3, device="cuda"))


def _scan() -> None:
    scan(lambda carried, x: (carried + x, x * 2), drawn(300), drawn(), dim=0)


def _built_while_it_runs() -> None:
    from torch.utils import cpp_extension

    cpp_extension.load_inline("mine", "", cuda_sources="__global__ void k(float* x) {}", functions=["f"])


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape or (300, 300), device="cuda")


RUNTIME: Any = torch.cuda.cudart
STORAGE: Any = torch.Tensor.untyped_storage
OUTSIDE: dict[str, Callable[[], Any]] = {
    "Operators of compiled": _extension,
    "cuGraph": lambda: drawn().__cuda_array_interface__,
    "The same by DLPack": lambda: torch.utils.dlpack.from_dlpack(drawn()),
    "Paged": lambda: RUNTIME().cudaMallocManaged(1 << 20),
    "Processes that share": lambda: STORAGE(drawn())._share_cuda_(),
    "Tensors of the card in a queue": lambda: ForkingPickler.dumps(drawn()),
    "Allocators": lambda: torch._C._cuda_changeCurrentAllocator(None),
    "Kernels in C++": _jiterator,
    "CUDA extensions compiled": _built_while_it_runs,
    "Strided nested": lambda: torch.nested.nested_tensor([torch.ones(3), torch.ones(2)]).cuda(),
    "Operators that take functions": _scan,
    "A second card": lambda: torch.ones(3, device="cuda:1"),
}
ROWS = dict(re.findall(r"^\| ([^|]+) \| [^|]+ \| (.+) \|$", text_of("memviz/predictor/README.md"), re.MULTILINE))


def _row(begin: str) -> str:
    (found,) = [sentence for what, sentence in ROWS.items() if what.startswith(begin)]
    return str(found)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("what", OUTSIDE)
def test_what_is_outside_stops_with_the_sentence_of_the_table(what: str) -> None:
    way, quoted = _row(what).split(": `", 1)
    with PredictedDevice(A100), pytest.raises(Exception) as raised:
        OUTSIDE[what]()
    text = str(raised.value)
    assert all(part in text for part in quoted.split("`")[0].split(" ... ")), text
    # A program that handles torch's error for a card that is not there finds it.
    assert isinstance(raised.value, RuntimeError) == (way == "error")


def test_what_is_noted_is_the_sentence_of_the_table() -> None:
    with PredictedDevice(A100) as device:
        torch.compile(nn.Linear(3, 3).cuda())(drawn(2, 3))
        notes = device.unseen()
    quoted = _row("Savings of `torch.compile`").split(": `", 1)[1].rstrip("`")
    assert any(quoted in note for note in notes)


def test_every_row_of_the_table_has_a_program() -> None:
    assert len(ROWS) - 1 == len(OUTSIDE) + 1
