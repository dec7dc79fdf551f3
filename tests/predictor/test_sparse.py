"""Sparse gradients, as from embeddings: their indices and values take memory."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from memviz.errors import UsageError
from memviz.predictor.device import PredictedDevice
from memviz.predictor.sparse import ALL_DIFFERENT
from memviz.trace.model import Category
from tests.predictor.rows import A100, allocations, sizes

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")
ROWS, WIDTH, COUNT = 100, 32, 7
WEIGHT, INDICES, VALUES = 4 * ROWS * WIDTH, 8 * COUNT, 4 * COUNT * WIDTH
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda weights: torch.optim.SGD(weights, 0.1),
    "Adagrad": lambda weights: torch.optim.Adagrad(weights, 0.1),
    "SparseAdam": lambda weights: torch.optim.SparseAdam(weights, 0.1, maximize=True),
}


def embedding(device: str) -> nn.Embedding:
    return nn.Embedding(ROWS, WIDTH, sparse=True, device=device)


def drawn() -> torch.Tensor:
    """Indices without values: so few alone would be drawn from a seed."""
    return torch.randint(0, ROWS, (300,), device="cuda")[:COUNT]


def test_a_gradient_is_what_backward_made_and_no_more(device: PredictedDevice) -> None:
    layer, indices = embedding("cuda"), drawn()
    before = device.recorder.ledger.count
    (layer(indices) * 2).sum().backward()
    trace = device.finish()
    assert layer.weight.grad is not None and layer.weight.grad._nnz() == COUNT
    rows = allocations(trace)[before:]
    # Forward's output, twice it, their sum, its gradient of one number, and the gradient of the first.
    assert [row.size for row in rows] == [VALUES, VALUES, 4, 4, VALUES]
    assert [row.category for row in rows][-1] is Category.GRADIENT
    # A step of plain descent takes nothing.
    before = device.recorder.ledger.count
    OPTIMIZERS["SGD"]([layer.weight]).step()
    assert sizes(device.finish())[before:] == []


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_go_as_on_the_host(name: str) -> None:
    def stepped(device: str) -> list[Any]:
        layer, found = embedding(device), list[Any]()
        indices = torch.tensor([3, 5, 5, 9, 1, 0, 3], device=device)
        optimizer = OPTIMIZERS[name]([layer.weight])
        for step in range(4):
            for _ in range(1 + step % 2):
                layer(indices).square().sum().backward()
            gradient: Any = layer.weight.grad
            found += [gradient.is_coalesced(), gradient.shape, gradient.coalesce()._nnz()]
            # What is added lies behind what was there; the host puts equal indices together at once.
            assert device == "cpu" or gradient._nnz() == COUNT * (1 + step % 2)
            optimizer.step()
            optimizer.zero_grad(set_to_none=step != 1)
        return found

    with PredictedDevice(A100) as device:
        predicted = stepped("cuda")
        device.finish()
    assert predicted == stepped("cpu")


def test_indices_that_nobody_knows_are_all_different_and_no_more_than_rows(device: PredictedDevice) -> None:
    layer, indices = embedding("cuda"), drawn()
    layer(indices).square().sum().backward()
    gradient: Any = layer.weight.grad
    before = device.recorder.ledger.count
    assert gradient.coalesce()._nnz() == COUNT
    # Indices in order, where each came from, where each begins, and the sums.
    assert sizes(device.finish())[before:] == [INDICES, INDICES, INDICES, VALUES]
    assert any(ALL_DIFFERENT in words for words in device.recorder.assumptions.sentences)
    layer = nn.Embedding(3, WIDTH, sparse=True, device="cuda")
    layer(torch.randint(0, 3, (COUNT,), device="cuda")).square().sum().backward()
    gradient = layer.weight.grad
    assert (gradient._nnz(), gradient.coalesce()._nnz(), gradient.to_dense().shape) == (COUNT, 3, (3, WIDTH))
    bags = nn.EmbeddingBag(ROWS, WIDTH, sparse=True, device="cuda")
    bags(torch.randint(0, ROWS, (4, 5), device="cuda")).sum().backward()
    gradient = bags.weight.grad
    assert (gradient._nnz(), gradient._values().shape) == (20, (20, WIDTH))
    device.finish()


PRODUCTS: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "torch.sparse.mm": torch.sparse.mm,
    "@": lambda matrix, dense: matrix @ dense,
    "torch.mm": torch.mm,
    "addmm": lambda matrix, dense: torch.sparse.addmm(torch.zeros(ROWS, WIDTH, device="cuda"), matrix, dense),
}


@pytest.mark.parametrize("way", PRODUCTS)
def test_a_product_takes_what_cusparse_wants_beside_it(way: str, device: PredictedDevice) -> None:
    matrix = square().cuda()
    dense = torch.ones(ROWS, WIDTH, device="cuda")
    before = device.recorder.ledger.count
    assert PRODUCTS[way](matrix, dense).shape == (ROWS, WIDTH)
    # What is added to, the result, where rows begin, rows and columns in 4 bytes, and the result by columns.
    taken = [WEIGHT, WEIGHT, 4 * (ROWS + 1), 4 * COUNT, 4 * COUNT, WEIGHT]
    assert sizes(device.finish())[before:] == taken
    assert any("cuSPARSE takes a workspace" in words for words in device.unseen())


def test_products_and_edges_get_their_gradients(device: PredictedDevice) -> None:
    dense = torch.ones(ROWS, WIDTH, device="cuda", requires_grad=True)
    (square().cuda() @ dense).sum().backward()
    assert dense.grad is not None and dense.grad.shape == (ROWS, WIDTH)
    assert (square().cuda() @ dense[:, 0]).shape == (ROWS,)
    values = torch.ones(COUNT, device="cuda", requires_grad=True)
    places = torch.arange(COUNT, device="cuda").expand(2, COUNT)
    edges = torch.sparse.softmax(torch.sparse_coo_tensor(places, values, (ROWS, ROWS)), 1)
    torch.sparse.mm(edges, torch.ones(ROWS, WIDTH, device="cuda")).sum().backward()
    assert values.grad is not None and values.grad.shape == (COUNT,)


def square() -> torch.Tensor:
    places = torch.arange(COUNT).expand(2, COUNT)
    return torch.sparse_coo_tensor(places, torch.ones(COUNT), (ROWS, ROWS)).coalesce()


def test_elements_that_are_not_computed_are_all_taken_for_sparse_ones() -> None:
    with PredictedDevice(A100, assume={"test_sparse.py:stated": 5}) as device:
        dense = torch.randn(ROWS, WIDTH, device="cuda", requires_grad=True)
        before = device.recorder.ledger.count
        matrix = dense.to_sparse()
        # Indices as found, in rows, and the values.
        assert sizes(device.finish())[before:] == [16 * ROWS * WIDTH, 16 * ROWS * WIDTH, WEIGHT]
        assert matrix.is_cuda and matrix.is_coalesced() and matrix._nnz() == ROWS * WIDTH
        (matrix @ torch.ones(WIDTH, 4, device="cuda")).sum().backward()
        assert dense.grad is not None and dense.grad.shape == dense.shape
        assert dense.detach().to_sparse(1)._values().shape == (ROWS, WIDTH)
        stated = dense.detach().to_sparse()
        assert stated._nnz() == 5
        assert torch.eye(9, device="cuda").to_sparse()._nnz() == 9


def test_sparse_data_of_the_host_is_computed_whatever_its_size(device: PredictedDevice) -> None:
    graph = torch.eye(1000) + torch.sparse_coo_tensor([[0, 1], [5, 7]], torch.ones(2), (1000, 1000))
    assert graph.sum(1).tolist()[:3] == [2, 2, 1] and graph.to_sparse().cuda()._nnz() == 1002
    unknown = torch.rand(1000, 1000).to_sparse()
    assert unknown._nnz() == 10**6 and "unknown" in str(unknown.sum()) and unknown.cuda()._nnz() == 10**6


ON_SPARSE: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "a number": lambda matrix, dense: (matrix * 2 / 3).abs(),
    "in place": lambda matrix, dense: matrix.clone().mul_(2),
    "elements of a dense one": lambda matrix, dense: matrix * (dense @ dense.t()),
    "sum": lambda matrix, dense: torch.sparse.sum(matrix, 1),
    "whole sum": lambda matrix, dense: torch.sparse.sum(matrix),
    "softmax": lambda matrix, dense: torch.sparse.softmax(matrix, 1),
    "turned": lambda matrix, dense: matrix.t(),
    "joined": lambda matrix, dense: torch.cat([matrix, matrix]),
    "dense first": lambda matrix, dense: dense.t() @ matrix,
    "rows": lambda matrix, dense: matrix.to_sparse_csr(),
    "columns": lambda matrix, dense: matrix.to_sparse_csr().to_sparse_csc(),
    "columns of rows turned": lambda matrix, dense: matrix.to_sparse_csr().t() @ dense,
    "rows as COO": lambda matrix, dense: matrix.to_sparse_csr().to_sparse_coo(),
    "rows as dense": lambda matrix, dense: matrix.to_sparse_csr().to_dense(),
    "rows in halves": lambda matrix, dense: matrix.to_sparse_csr().half() * 2,
    "rows of a dense one": lambda matrix, dense: (dense @ dense.t()).to_sparse_csr(),
    "rows made": lambda matrix, dense: torch.sparse_csr_tensor(
        *(part(matrix.to_sparse_csr()) for part in (torch.Tensor.crow_indices, torch.Tensor.col_indices)),
        matrix.values(),
        matrix.shape,
    ),
    "sampled": lambda matrix, dense: torch.sparse.sampled_addmm(matrix.to_sparse_csr(), dense, dense.t()),
    "to the host": lambda matrix, dense: (matrix.to_sparse_csr() * 2).cpu(),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("way", ON_SPARSE)
def test_results_have_layout_shape_and_number_of_values_as_on_the_host(way: str) -> None:
    def described(device: str) -> list[Any]:
        out = ON_SPARSE[way](square().to(device), torch.ones(ROWS, WIDTH, device=device))
        found = [out.layout, out.dtype, out.shape]
        return found if out.layout is torch.strided else [*found, out._nnz()]

    with PredictedDevice(A100):
        predicted = described("cuda")
    assert predicted == described("cpu")


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_rows_are_multiplied_without_a_conversion(device: PredictedDevice) -> None:
    before = device.recorder.ledger.count
    matrix = square().to_sparse_csr().cuda()
    dense = torch.ones(ROWS, WIDTH, device="cuda", requires_grad=True)
    out = matrix @ dense
    # Offsets of rows, columns and values of the copy; then what is added to, and the result.
    assert sizes(device.finish())[before:] == [8 * (ROWS + 1), 8 * COUNT, 4 * COUNT, WEIGHT, WEIGHT, WEIGHT]
    out.sum().backward()
    assert dense.grad is not None


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "sparse by sparse": (lambda: torch.sparse.mm(square().cuda(), square().cuda()), "_sparse_sparse_matmul"),
    "rows by rows": (lambda: square().cuda().to_sparse_csr() @ square().cuda().to_sparse_csr(), "mm"),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("way", REFUSED)
def test_what_no_rule_knows_is_refused_by_name(way: str, device: PredictedDevice) -> None:
    ask, name = REFUSED[way]
    with pytest.raises(UsageError, match=f"{name} cannot be predicted: no rule gives .*sparse"):
        ask()
