"""Programs of our own that do what the recorded ones did, by the names of the recordings."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any
from warnings import catch_warnings

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.truth import filled_tables_model as filled_tables
from tests.truth import turned_halves_model as turned_halves
from tests.truth import written_pairs_model as written_pairs
from tests.truth.biased_model import BiasedModel
from tests.truth.convolutional_model import CHANNELS, SIDE, Judge, search
from tests.truth.default_device_model import DefaultDeviceModel
from tests.truth.filled_tables_model import FilledTablesModel
from tests.truth.language_model import AdamW, LanguageModel, Sizes, cross_entropy
from tests.truth.summed_squares_model import SummedSquaresModel, softmax
from tests.truth.turned_halves_model import TurnedHalvesModel
from tests.truth.written_pairs_model import WrittenPairsModel


def _words(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64, device="cpu").to("cuda")


def _drawn(*shape: int) -> Tensor:
    return torch.randint(0, 10_000, shape, device="cuda")


def _record() -> None:
    torch.cuda.memory._record_memory_history(max_entries=1_000_000)


def _dump() -> None:
    torch.cuda.memory._dump_snapshot("recorded.pickle")


def _precision(halves: bool) -> AbstractContextManager[Any]:
    return torch.autocast("cuda", dtype=torch.bfloat16) if halves else nullcontext()


def _steps(count: int) -> Iterator[int]:
    """Count steps, of which the last is recorded."""
    for step in range(count):
        if step == count - 1:
            _record()
        yield step
    _dump()


def _forward() -> None:
    model = LanguageModel(Sizes(batch=10, context=100))
    words = _words(10, 100)
    for _ in range(3):
        model(words)


def _train(context: int, *, halves: bool) -> None:
    model = LanguageModel(Sizes(batch=10, context=context))
    optimizer = AdamW(model.parameters())
    words, next_words = _words(10, context), _words(10)
    with _precision(halves):
        for _ in range(3):
            scores = model(words)
            loss = cross_entropy(scores[:, -1, :], next_words)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def _attention() -> None:
    query, key, value = (torch.randn(8, 4096, 16, device="cuda", requires_grad=True) for _ in range(3))
    mixed = _mixed(query, key, value)
    mixed.sum().backward()


def _mixed(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = torch.einsum("...qd,...kd->...qk", query, key) / 16**0.5
    return torch.einsum("...qk,...kd->...qd", softmax(scores), value)


_MEDIUM = Sizes(batch=4, context=128, width=1024, inner=4096, layers=24, heads=16)
_SMALL = Sizes(batch=4, context=128, width=768, inner=3072, layers=12, heads=12)


def _infer(sizes: Sizes) -> None:
    model = TurnedHalvesModel(sizes)
    model.to("cuda")
    warmup = _drawn(5, sizes.batch, sizes.context)
    words = _drawn(1, sizes.batch, sizes.context)
    model.eval()
    with torch.inference_mode():
        for step in range(2):
            model(warmup[step])
        _record()
        model(words[0])
    _dump()


def _train_later(sizes: Sizes) -> None:
    """Train in bfloat16, and record the sixth step."""
    model = TurnedHalvesModel(sizes)
    model.to("cuda")
    optimizer = turned_halves.AdamW(model.parameters())
    warmup, words = (_drawn(steps, sizes.batch, sizes.context) for steps in (5, 1))
    warmup_targets, targets = (_drawn(steps, sizes.batch, sizes.context) for steps in (5, 1))
    for step in range(5):
        with _precision(halves=True):
            scores = model(warmup[step])
            loss = turned_halves.cross_entropy(scores, warmup_targets[step])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    del scores, loss
    _record()
    with _precision(halves=True):
        scores = model(words[0])
        loss = turned_halves.cross_entropy(scores, targets[0])
    loss.backward()
    optimizer.step()
    _dump()


def _backward_later(sizes: Sizes) -> None:
    """Gradients add up over the steps."""
    model = TurnedHalvesModel(sizes).to("cuda")
    words, targets = _words(sizes.batch, sizes.context), _words(sizes.batch, sizes.context)
    for _ in _steps(3):
        scores = model(words)
        loss = turned_halves.cross_entropy(scores, targets)
        loss.backward()


def _forward_later(model_type: type[nn.Module], sizes: Sizes, *, halves: bool, has_graph: bool = False) -> None:
    model = model_type(sizes).to("cuda")
    words = _words(sizes.batch, sizes.context)
    for _ in _steps(3):
        with _precision(halves), torch.set_grad_enabled(has_graph):
            model(words)


_LARGEST = replace(_MEDIUM, width=2560, inner=10240, layers=32, heads=32)


def _library_step(context: int, *, halves: bool, trains: bool, keeps_graph: bool = False) -> None:
    """Run torch's own loss and AdamW, or the forward alone."""
    model = TurnedHalvesModel(replace(_LARGEST, context=context)).to("cuda")
    words, targets = _drawn(4, context), _drawn(4, context)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        with torch.set_grad_enabled(trains or keeps_graph), _precision(halves):
            scores = model(words)
        if trains:
            loss = functional.cross_entropy(scores.float().flatten(0, 1), targets.flatten())
            loss.backward()
            optimizer.step()

    for _ in _steps(6):
        step()


def _loss_with_graph() -> None:
    """Run the forward and torch's own loss in bfloat16 six times, with their graphs, and record the sixth."""
    model = TurnedHalvesModel(replace(_LARGE, batch=1, context=128), gathers=True).to("cuda")
    words, targets = _words(1, 128), _words(1, 128)
    for step in range(6):
        if step == 5:
            torch.cuda.empty_cache()
            _record()
        with _precision(halves=True):
            scores = model(words)
            loss = functional.cross_entropy(scores.flatten(0, 1), targets.flatten())
    _dump()
    del loss


def _library_training(sizes: Sizes) -> None:
    """Train with torch's own loss and AdamW."""
    model = TurnedHalvesModel(sizes, gathers=True).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    words, targets = (_drawn(sizes.batch, sizes.context) for _ in range(2))
    for _ in _steps(4):
        optimizer.zero_grad()
        scores = model(words)
        loss = functional.cross_entropy(scores.flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()


def _first_step(context: int, *, halves: bool, trains: bool) -> None:
    """Record the first forward or step of a model; the models before it had left their memory."""
    torch.set_float32_matmul_precision("highest" if halves else "high")
    if trains or context > 128:
        # An earlier model of the process has made cuBLAS's workspace.
        torch.mm(torch.zeros(1, 1, device="cuda"), torch.zeros(1, 1, device="cuda"))
    model = WrittenPairsModel(replace(_LARGEST, context=context)).to("cuda")
    optimizer = written_pairs.AdamW(model.parameters())
    words = _words(4, context)
    with _precision(halves):
        _record()
        torch.cuda.empty_cache()
        scores = model(words)
        if trains:
            loss = written_pairs.cross_entropy(scores, words)
            loss.backward()
            optimizer.step()
    _dump()


def _default_device_step(context: int, *, halves: bool, trains: bool) -> None:
    """Build a model under a default device, run its forward once, and record a second one or a whole step."""
    torch.set_default_device("cuda")
    try:
        _second_step(context, halves=halves, trains=trains)
    finally:
        torch.set_default_device(None)


def _second_step(context: int, *, halves: bool, trains: bool) -> None:
    model = DefaultDeviceModel(replace(_LARGEST, context=context))
    optimizer = turned_halves.AdamW(model.parameters())
    starts = torch.randint(10_000 - context, (4,))
    words, targets = _words(4, context), _words(4, context)
    del starts
    precision = _precision(halves)
    with precision:
        scores = model(words)
    _record()
    with precision:
        scores = model(words)
        if trains:
            loss = turned_halves.cross_entropy(scores.flatten(0, 1), targets.flatten())
    if trains:
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    _dump()


_LARGE = Sizes(batch=4, context=256, width=1280, inner=5120, layers=36, heads=20)
_HUGE = replace(_LARGE, width=1600, inner=6400, layers=48, heads=25)


def _steps_in_full(sizes: Sizes, *, halves: bool, only_forward: bool) -> None:
    """Training whose forward may be in bfloat16, with a recording of the second step or of its forward."""
    model = FilledTablesModel(sizes)
    optimizer = filled_tables.AdamW(model.parameters())
    model.to("cuda")
    words = _drawn(sizes.batch, sizes.context)
    for step in _steps(2):
        with _precision(halves):
            scores = model(words)
            if step == 1 and only_forward:
                return _dump()
        loss = scores.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _compare_without_gradients() -> None:
    """The first forward of a model whose steps are tried by forward passes alone; it was offloaded in between."""
    sizes = Sizes(batch=8, context=31, width=768, inner=3072, layers=12, heads=12, vocabulary=50_272)
    _record()
    model = BiasedModel(sizes, places=2048).to("cuda")
    moments = [torch.zeros_like(parameter) for parameter in model.parameters()]
    _set_aside(model)
    model.cpu()
    model.to("cuda")
    _set_aside(model)
    words, shown, labels = _words(8, 31), torch.ones(8, 31, dtype=torch.int64).to("cuda"), _words(8, 31)
    with torch.no_grad():
        model(words, shown)
    _dump()
    del moments, labels


def _set_aside(model: nn.Module) -> None:
    """Repeat the allocations of a deep copy on a GPU: the storage, then an empty tensor that takes it over."""
    for value in model.state_dict().values():
        copied = value.clone()
        value.new_empty([])
        copied.cpu()
        del copied


def _search_with_checks() -> None:
    """Search for a picture under autograd's anomaly detection, recorded from its first step."""
    judge = Judge().to("cuda")
    judge.requires_grad_(False)
    original = torch.zeros(1, CHANNELS[0], SIDE, SIDE)
    before = judge(original.to("cuda"))
    with torch.autograd.set_detect_anomaly(True):
        _record()
        search(judge, original, before, steps=10)
        _dump()


def _squared_errors() -> None:
    """Train attention alone, by torch's mean squared error, and record the sixth to the 105th step."""
    query, key, value = (torch.randn(8, 256, 16, device="cuda", requires_grad=True) for _ in range(3))
    labels = torch.randn(8, 256, 16, device="cuda")

    def attend() -> Tensor:
        scores = query @ key.mT / 16**0.5
        scores -= scores.max(dim=-1, keepdim=True).values
        powers = scores.exp()
        return powers / powers.sum(dim=-1, keepdim=True) @ value

    def step() -> None:
        output = attend()
        loss = functional.mse_loss(output, labels)
        loss.backward()

    for number in range(105):
        if number == 5:
            _record()
        step()
    _dump()


def _transformer() -> None:
    """Train torch's own transformer, with dropout and Adam, recorded from its creation."""
    _record()
    # It warns that it has no use for nested tensors.
    with catch_warnings(action="ignore"):
        model = nn.Transformer(512, nhead=2, num_encoder_layers=2, num_decoder_layers=2).to("cuda")
    source, target = torch.randn(1, 1024, 512, device="cuda"), torch.rand(1, 1024, 512, device="cuda")
    labels = torch.rand_like(model(source, target))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(5):
        scores = model(source, target)
        loss = functional.cross_entropy(scores, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    _dump()


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(768, 12, batch_first=True)
        self.first_norm = nn.LayerNorm(768)
        self.feed_forward = nn.Sequential(nn.Linear(768, 3072), nn.GELU(), nn.Linear(3072, 768))
        self.second_norm = nn.LayerNorm(768)

    def forward(self, x: Tensor) -> Tensor:
        attended, _ = self.attention(x, x, x)
        x = self.first_norm(x + attended)
        changed = self.feed_forward(x)
        return self.second_norm(x + changed)  # type: ignore[no-any-return]


def _library_layers() -> None:
    """Run blocks of torch's own layers and its loss without gradients, recorded from the model's creation."""
    words, targets = _words(32, 128), _words(32, 128)
    _record()
    blocks = (_Block() for _ in range(12))
    model = nn.Sequential(nn.Embedding(50_000, 768), *blocks, nn.LayerNorm(768), nn.Linear(768, 50_000)).to("cuda")
    for _ in range(25):
        with torch.no_grad():
            scores = model(words)
            loss = functional.cross_entropy(scores.flatten(0, 1), targets.flatten())
    _dump()
    del scores, loss


CUT_SHORT = {"forward-many-segments", "train-weights-first"}
"""Two steps of 48, whose last was recorded: all take minutes to predict, and what is reserved depends on
them. The whole of `train-weights-first` is exact. These two are not in the data of stated intervals."""
PROGRAMS: dict[str, Callable[[], None]] = {
    "forward-complete": _forward,
    "train-complete": partial(_train, 100, halves=False),
    "train-mixed-precision": partial(_train, 200, halves=True),
    "small-complete": _attention,
    "inference-late-start": partial(_infer, _MEDIUM),
    "train-late-start": partial(_train_later, replace(_MEDIUM, context=512)),
    "few-frames": partial(_backward_later, replace(_SMALL, batch=32, context=256)),
    "forward-fp32": partial(_forward_later, SummedSquaresModel, _SMALL, halves=False),
    "forward-bf16": partial(_forward_later, SummedSquaresModel, _SMALL, halves=True),
    "forward-many-segments": partial(_steps_in_full, _HUGE, halves=True, only_forward=True),
    "biases-and-mask": _compare_without_gradients,
    "train-weights-first": partial(_steps_in_full, _LARGE, halves=False, only_forward=False),
    "largest-graph-128": partial(_library_step, 128, halves=False, trains=False, keeps_graph=True),
    "largest-graph-128-bf16": partial(_library_step, 128, halves=True, trains=False, keeps_graph=True),
    "blackwell-forward-2048": partial(_forward_later, TurnedHalvesModel, replace(_LARGEST, context=2048), halves=False),
    "blackwell-graph-512-bf16": partial(
        _forward_later, TurnedHalvesModel, replace(_LARGEST, context=512), halves=True, has_graph=True
    ),
    "loss-with-graph-bf16": _loss_with_graph,
    "library-train-128": partial(_library_training, _MEDIUM),
    "convolutions-checked": _search_with_checks,
    "squared-errors": _squared_errors,
    "transformer": _transformer,
    "library-layers-128": _library_layers,
    **{
        f"{name}-{'train' if trains else 'forward'}-{context}{'-bf16' if halves else ''}": partial(
            step, context, halves=halves, trains=trains
        )
        for name, step in (
            ("largest", _library_step),
            ("written-pairs", _first_step),
            ("default-device", _default_device_step),
        )
        for context in (128, 256, 512, 1024, 2048)
        for halves in (False, True)
        for trains in (False, True)
    },
}
"""Programs by the names of their recordings; steps of the last kinds have more sizes than were recorded."""
