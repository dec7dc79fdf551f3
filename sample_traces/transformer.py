"""A small GPT, forward and backward, as sizes only: what is allocated, where, and for how long.

No tensor holds data. Each function allocates what PyTorch's operator would, keeps what autograd would keep, and
lets Python's reference counts free the rest, so lifetimes come out as they do in a real run.
The files in the stacks (`train.py`, `model.py`, `block.py`, `attention.py`, `mlp.py`) are invented.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from memviz.trace.model import Category, Phase
from sample_traces.recorder import Recorder, Tensor

TORCH = "/opt/venv/lib/python3.12/site-packages/torch/"
FUNCTIONAL = TORCH + "nn/functional.py"
MODULES = TORCH + "nn/modules/"
CHECKPOINT = TORCH + "utils/checkpoint.py"
FLOAT = 4
CUBLAS_WORKSPACE = 8_519_680
"""What PyTorch takes for each thread that multiplies matrices, on most NVIDIA cards."""


@dataclass(frozen=True)
class Shape:
    batch: int = 8
    sequence: int = 512
    width: int = 512
    heads: int = 8
    layers: int = 8
    vocabulary: int = 8192

    @property
    def rows(self) -> int:
        return self.batch * self.sequence

    @property
    def hidden(self) -> int:
        """Bytes of one hidden state; everything in a block is a multiple of it."""
        return self.rows * self.width * FLOAT

    @property
    def logits(self) -> int:
        return self.rows * self.vocabulary * FLOAT

    def parameters(self) -> Iterator[tuple[str, int]]:
        """Name and number of values, in the order in which a model moves to the device."""
        width = self.width
        yield "token_embedding.weight", self.vocabulary * width
        yield "position_embedding.weight", 1024 * width
        for layer in range(self.layers):
            for name, count in (
                ("norm1.weight", width),
                ("norm1.bias", width),
                ("attention.qkv.weight", 3 * width * width),
                ("attention.qkv.bias", 3 * width),
                ("attention.out.weight", width * width),
                ("attention.out.bias", width),
                ("norm2.weight", width),
                ("norm2.bias", width),
                ("mlp.up.weight", 4 * width * width),
                ("mlp.up.bias", 4 * width),
                ("mlp.down.weight", 4 * width * width),
                ("mlp.down.bias", width),
            ):
                yield f"blocks.{layer}.{name}", count
        yield "norm.weight", width
        yield "norm.bias", width
        yield "head.weight", self.vocabulary * width


class Saved:
    """What autograd keeps of one module for its backward."""

    category = Category.ACTIVATION

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}

    def keep(self, name: str, *tensors: Tensor) -> None:
        for number, tensor in enumerate(tensors):
            self._tensors[f"{name}.{number}"] = tensor

    def first(self, name: str) -> Tensor:
        return self._tensors[f"{name}.0"]

    def drop(self, name: str) -> None:
        for key in [key for key in self._tensors if key.rpartition(".")[0] == name]:
            del self._tensors[key]


class Forgets(Saved):
    """Under activation checkpointing the first forward keeps nothing inside a block."""

    category = Category.TEMPORARY

    def keep(self, name: str, *tensors: Tensor) -> None:
        pass


@dataclass
class Model:
    run: Recorder
    shape: Shape
    checkpointed: bool
    weights: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    states: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    workspaces: dict[str, Tensor] = field(default_factory=dict)

    def workspace(self, thread: str) -> None:
        """The first matrix product of each thread brings cuBLAS its workspace, for good."""
        if thread in self.workspaces:
            return
        operator = self.run.frame("at::_ops::addmm::call(at::Tensor const&)", "??", 0)
        with operator, self.run.frame("at::cuda::getNewWorkspace()", "??", 0):
            self.workspaces[thread] = self.run.tensor(CUBLAS_WORKSPACE, "", Category.WORKSPACE)

    def gradient(self, name: str, op: str) -> None:
        self.gradients[name] = self.run.tensor(self.weights[name].size, op, Category.GRADIENT)


def build(run: Recorder, shape: Shape, *, checkpointed: bool) -> Model:
    model = Model(run, shape, checkpointed)
    with run.frame("main", "train.py", 31), run.frame("to", MODULES + "module.py", 1378):
        for name, count in shape.parameters():
            path, depth = name.rpartition(".")[0], name.count(".")
            recursion = run.nested("_apply", MODULES + "module.py", (930,) * depth + (957,))
            with run.module(path), recursion, run.frame("convert", MODULES + "module.py", 1364):
                model.weights[name] = run.tensor(count * FLOAT, "_to_copy", Category.PARAMETER)
    return model


def linear(model: Model, x: Tensor, name: str, *, bytes_out: int, saved: Saved, category: Category) -> Tensor:
    run = model.run
    with run.call(name), run.frame("forward", MODULES + "linear.py", 134):
        model.workspace("main")
        out = run.tensor(bytes_out, "addmm", category)
    saved.keep(name, x)
    return out


def layer_norm(model: Model, x: Tensor, name: str, saved: Saved) -> Tensor:
    run, rows = model.run, model.shape.rows
    forward = run.frame("forward", MODULES + "normalization.py", 229)
    with run.call(name), forward, run.frame("layer_norm", FUNCTIONAL, 2935):
        out = run.tensor(x.size, "native_layer_norm", saved.category)
        mean, deviation = (run.tensor(rows * FLOAT, "native_layer_norm", saved.category) for _ in range(2))
    saved.keep(name, x, mean, deviation)
    return out


def attention(model: Model, x: Tensor, saved: Saved) -> Tensor:
    run, shape = model.run, model.shape
    with run.call("attention"):
        with run.frame("forward", "attention.py", 18):
            qkv = linear(model, x, "qkv", bytes_out=3 * shape.hidden, saved=saved, category=saved.category)
        with run.frame("forward", "attention.py", 21):
            op = "_scaled_dot_product_efficient_attention"
            out = run.tensor(shape.hidden, op, saved.category)
            sums = run.tensor(shape.rows * shape.heads * FLOAT, op, saved.category)
        saved.keep("attention", qkv, out, sums)
        with run.frame("forward", "attention.py", 23):
            return linear(model, out, "out", bytes_out=x.size, saved=saved, category=Category.TEMPORARY)


def mlp(model: Model, x: Tensor, saved: Saved) -> Tensor:
    run = model.run
    with run.call("mlp"):
        with run.frame("forward", "mlp.py", 14):
            wide = linear(model, x, "up", bytes_out=4 * x.size, saved=saved, category=saved.category)
        with run.frame("forward", "mlp.py", 15):
            bent = run.tensor(wide.size, "gelu", saved.category)
        saved.keep("gelu", wide)
        del wide
        with run.frame("forward", "mlp.py", 16):
            return linear(model, bent, "down", bytes_out=x.size, saved=saved, category=Category.TEMPORARY)


def block(model: Model, x: Tensor, saved: Saved) -> Tensor:
    run = model.run
    with run.frame("forward", "block.py", 19):
        middle = _added(run, x, attention(model, layer_norm(model, x, "norm1", saved), saved), saved.category)
    with run.frame("forward", "block.py", 20):
        return _added(run, middle, mlp(model, layer_norm(model, middle, "norm2", saved), saved), Category.ACTIVATION)


def _added(run: Recorder, x: Tensor, branch: Tensor, category: Category) -> Tensor:
    return run.tensor(x.size, "add", category)


def forward(model: Model, tokens: Tensor, targets: Tensor, graph: list[Saved]) -> tuple[Tensor, Tensor]:
    """Logits and loss, as the training script holds them; what backward needs goes to `graph`, in order."""
    run, shape = model.run, model.shape
    with run.phase(Phase.FORWARD), run.call(""):
        x = _embedded(model, tokens)
        for layer in range(shape.layers):
            with run.frame("forward", "model.py", 45), run.module(f"blocks.{layer}"):
                x = _checkpointed(model, x, graph) if model.checkpointed else _plain(model, x, graph)
        last = Saved()
        graph.append(last)
        with run.frame("forward", "model.py", 48):
            x = layer_norm(model, x, "norm", last)
            logits = linear(model, x, "head", bytes_out=shape.logits, saved=last, category=Category.OUTPUT)
        with run.frame("forward", "model.py", 51), run.frame("cross_entropy", FUNCTIONAL, 3494):
            log_softmax = run.tensor(shape.logits, "_log_softmax", Category.ACTIVATION)
            loss, weight = (run.tensor(FLOAT, "nll_loss_forward", Category.OUTPUT) for _ in range(2))
        last.keep("loss", log_softmax, weight, targets)
        return logits, loss


def _embedded(model: Model, tokens: Tensor) -> Tensor:
    run, shape = model.run, model.shape
    with run.frame("forward", "model.py", 41), run.frame("embedding", FUNCTIONAL, 2546):
        by_token = run.tensor(shape.hidden, "embedding", Category.TEMPORARY)
    with run.frame("forward", "model.py", 42), run.frame("embedding", FUNCTIONAL, 2546):
        by_place = run.tensor(shape.sequence * shape.width * FLOAT, "embedding", Category.TEMPORARY)
    with run.frame("forward", "model.py", 43):
        return _added(run, by_token, by_place, Category.ACTIVATION)


def _plain(model: Model, x: Tensor, graph: list[Saved]) -> Tensor:
    graph.append(Saved())
    with model.run.call(""):
        return block(model, x, graph[-1])


def _checkpointed(model: Model, x: Tensor, graph: list[Saved]) -> Tensor:
    graph.append(Saved())
    graph[-1].keep("input", x)
    with model.run.frame("checkpoint", CHECKPOINT, 502), model.run.call(""):
        return block(model, x, Forgets())


def backward(model: Model, graph: list[Saved]) -> None:
    """The autograd thread: the last module first, each module's saved tensors freed as it is done."""
    run, shape = model.run, model.shape
    with run.phase(Phase.BACKWARD), run.autograd_thread():
        grad = _loss_backward(model, graph.pop())
        for layer in reversed(range(shape.layers)):
            saved = graph.pop()
            with run.module(f"blocks.{layer}"):
                if model.checkpointed:
                    _recompute(model, saved)
                grad = block_backward(model, grad, f"blocks.{layer}.", saved)
        with run.node("EmbeddingBackward0"):
            model.gradient("position_embedding.weight", "embedding_dense_backward")
            model.gradient("token_embedding.weight", "embedding_dense_backward")


def _recompute(model: Model, saved: Saved) -> None:
    run = model.run
    unpacking = run.frame("unpack_hook", CHECKPOINT, 1130)
    recomputing = run.frame("recompute_fn", CHECKPOINT, 1500)
    with run.node("NativeLayerNormBackward0"), unpacking, recomputing, run.call(""):
        block(model, saved.first("input"), saved)
    saved.drop("input")


def _loss_backward(model: Model, saved: Saved) -> Tensor:
    run, size = model.run, model.shape.logits
    with run.node("NllLossBackward0"):
        picked = run.tensor(size, "nll_loss_backward", Category.TEMPORARY)
    with run.node("LogSoftmaxBackward0"):
        grad = run.tensor(size, "_log_softmax_backward_data", Category.TEMPORARY)
        del picked
        saved.drop("loss")
    grad = linear_backward(model, grad, "head", saved, bytes_in=model.shape.hidden, path="", bias=False)
    return norm_backward(model, grad, "norm", saved, path="")


def linear_backward(
    model: Model, grad: Tensor, name: str, saved: Saved, *, bytes_in: int, path: str, bias: bool = True
) -> Tensor:
    run = model.run
    with run.module(name), run.node("AddmmBackward0" if bias else "MmBackward0"):
        model.workspace("autograd")
        grad_input = run.tensor(bytes_in, "mm", Category.TEMPORARY)
        model.gradient(f"{path}{name}.weight", "mm")
        if bias:
            model.gradient(f"{path}{name}.bias", "sum_dim_IntList")
        saved.drop(name)
    return grad_input


def norm_backward(model: Model, grad: Tensor, name: str, saved: Saved, *, path: str) -> Tensor:
    run = model.run
    with run.module(name), run.node("NativeLayerNormBackward0"):
        grad_input = run.tensor(grad.size, "native_layer_norm_backward", Category.TEMPORARY)
        model.gradient(f"{path}{name}.weight", "native_layer_norm_backward")
        model.gradient(f"{path}{name}.bias", "native_layer_norm_backward")
        saved.drop(name)
    return grad_input


def block_backward(model: Model, grad: Tensor, path: str, saved: Saved) -> Tensor:
    middle = _mlp_backward(model, grad, path, saved)
    middle = _residual_grad(model.run, grad, norm_backward(model, middle, "norm2", saved, path=path))
    # The caller still holds the block's incoming gradient, as the engine's input buffer does.
    below = _attention_backward(model, middle, path, saved)
    return _residual_grad(model.run, middle, norm_backward(model, below, "norm1", saved, path=path))


def _residual_grad(run: Recorder, grad: Tensor, branch: Tensor) -> Tensor:
    with run.node("AddBackward0"):
        return run.tensor(grad.size, "add", Category.TEMPORARY)


def _mlp_backward(model: Model, grad: Tensor, path: str, saved: Saved) -> Tensor:
    run, size = model.run, grad.size
    with run.module("mlp"):
        wide = linear_backward(model, grad, "down", saved, bytes_in=4 * size, path=path + "mlp.")
        with run.node("GeluBackward0"):
            wide = run.tensor(4 * size, "gelu_backward", Category.TEMPORARY)
            saved.drop("gelu")
        return linear_backward(model, wide, "up", saved, bytes_in=size, path=path + "mlp.")


def _attention_backward(model: Model, grad: Tensor, path: str, saved: Saved) -> Tensor:
    run, shape, size = model.run, model.shape, grad.size
    with run.module("attention"):
        out = linear_backward(model, grad, "out", saved, bytes_in=size, path=path + "attention.")
        with run.node("ScaledDotProductEfficientAttentionBackward0"):
            op = "_scaled_dot_product_efficient_attention_backward"
            parts = [run.tensor(size, op, Category.TEMPORARY) for _ in range(3)]
            delta = run.tensor(shape.rows * shape.heads * FLOAT, op, Category.TEMPORARY)
            del delta, out
            saved.drop("attention")
        with run.node("SplitBackward0"):
            joined = run.tensor(3 * size, "cat", Category.TEMPORARY)
            parts.clear()
        return linear_backward(model, joined, "qkv", saved, bytes_in=size, path=path + "attention.")
