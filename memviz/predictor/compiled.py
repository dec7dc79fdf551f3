"""Code under torch.compile, with the memory that its compiled kernels take.

torch's own compiler does the work: AOTAutograd traces a call and divides it into forward and backward, inductor fuses
operators and orders, reuses and frees buffers. What inductor writes is Python that allocates each buffer, launches
kernels and calls matrix products and attention. That Python runs on the pretended device, where kernels do nothing.

Tensors that are traced are on `meta`, because autograd refuses those of a CUDA device that torch was not built for;
graphs are moved to the card once they are traced. No kernel is compiled, so Triton need not be installed.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, partialmethod, wraps
from itertools import count
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.nn.utils.stateless import _reparametrize_module
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from memviz.predictor.assumptions import not_predicted
from memviz.predictor.compat import Patches, without_modes
from memviz.predictor.decompositions import captured_by, flex_inputs, flex_results
from memviz.predictor.recorder import AllocationRecorder
from memviz.predictor.repetition import key_of_inputs
from memviz.predictor.rules import COMPILED

aten = torch.ops.aten

_MOST_GRAPHS = 8
"""Graphs of one callable, after which torch runs it uncompiled (`recompile_limit`)."""
_CARD = torch.device("cuda:0")
_PREDICTED = (
    "Code under torch.compile is predicted with the buffers planned by the compiler of torch {version}, one graph per "
    "compiled call. Graph breaks, dynamic shapes, and kernels or padding chosen by timing are not followed."
)
_STOPPED = "{name} ran uncompiled, operator by operator: torch's compiler failed ({reason})."
_TOO_MANY = "it was called with more than 8 different shapes or settings"
_HOLDS_STATE = "it is a method of an object with its own state"
_FUSED_STEP = (
    "A compiled optimizer step is predicted to create its states and to update them and the weights in place, without "
    "buffers."
)
_NO_KEY = "an argument is not a tensor or a plain value"


@dataclass(frozen=True)
class _Graph:
    """One compiled call: a function of all tensors it reads, and how its result is put together."""

    run: Callable[..., Any]
    result: _Result


@dataclass
class _Result:
    """The result of a traced call: its structure, with a `_Place` for each tensor."""

    template: Any = None
    count: int = 0


@dataclass
class _Graphs:
    """Graphs that were compiled of one callable."""

    name: str
    by_key: dict[Any, _Graph] = field(default_factory=dict)
    is_refused: bool = False


class Compiler:
    """Compiles callables of a program when they are called, and runs what was compiled in their place."""

    def __init__(self, recorder: AllocationRecorder, call: Callable[..., Any]) -> None:
        """`call` is torch's own `nn.Module.__call__`."""
        self._recorder = recorder
        self._call = call
        self._modules: WeakKeyDictionary[nn.Module, _Graphs] = WeakKeyDictionary()
        self._functions: dict[Any, _Graphs] = {}
        """Graphs of functions that are defined anew for each call, by their code and what they close over."""
        self.is_tracing = False

    def compiled(self, target: Any) -> Any:
        """Return what a program uses in the place of a function; a module stays, and is compiled where it is called."""
        if isinstance(target, nn.Module):
            self._modules[target] = _Graphs(type(target).__name__)
            return target
        if self.is_tracing or isinstance(target, type) or not callable(target):
            return target
        graphs = _Graphs(getattr(target, "__qualname__", type(target).__name__))
        if isinstance(target, FunctionType):
            cells = [key_of_inputs(cell.cell_contents) for cell in target.__closure__ or () if cell != CellType()]
            if None not in cells:
                graphs = self._functions.setdefault((target.__code__, *cells), graphs)
        return wraps(target)(partial(self._run, graphs, target))

    def instead_of(self, module: nn.Module) -> Callable[..., Any] | None:
        """Return the compiled call of a module that the program has compiled."""
        graphs = None if self.is_tracing else self._modules.get(module)
        return None if graphs is None else partial(self._run, graphs, module)

    def _run(self, graphs: _Graphs, target: Any, /, *args: Any, **kwargs: Any) -> Any:
        call = partial(self._call, target) if isinstance(target, nn.Module) else target
        if graphs.is_refused or self.is_tracing:
            return call(*args, **kwargs)
        if _is_fused_step(target) and not args and not kwargs:
            self._recorder.operators.add(COMPILED)
            self._recorder.assumptions.say(_FUSED_STEP)
            return _step_in_place(target)
        modules = _modules_of(target)
        named = [
            (module, *pair)
            for module in modules
            for pair in (
                *module.named_parameters(remove_duplicate=False),
                *module.named_buffers(remove_duplicate=False),
            )
        ]
        leaves, spec = tree_flatten((args, kwargs))
        own = {id(tensor): tensor for *_, tensor in named}
        tensors = [*own.values(), *(leaf for leaf in leaves if isinstance(leaf, Tensor) and id(leaf) not in own)]
        key = self._key(leaves, spec, modules, named)
        say = self._recorder.assumptions.say
        try:
            if not isinstance(getattr(target, "__self__", None), nn.Module | None):
                raise not_predicted(graphs.name, _HOLDS_STATE)
            if key is None:
                raise not_predicted(graphs.name, _NO_KEY)
            if key not in graphs.by_key:
                if len(graphs.by_key) == _MOST_GRAPHS:
                    raise not_predicted(graphs.name, _TOO_MANY)
                places = {id(tensor): at for at, tensor in enumerate(tensors)}
                parts = [_Place(places[id(leaf)]) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
                weights = [
                    (ref(module), {weight: places[id(tensor)] for owner, weight, tensor in named if owner is module})
                    for module in modules
                ]
                traced = partial(_run_with, self._without_module(target), weights, parts, spec)
                graphs.by_key[key] = self._trace(graphs.name, traced, tensors)
        except Exception as error:
            reason = " ".join(str(error).split("\n")[0].split())[:160] or type(error).__name__
            say(_STOPPED.format(name=graphs.name, reason=reason))
            graphs.is_refused = True
            return call(*args, **kwargs)
        graph = graphs.by_key[key]
        self._recorder.operators.add(COMPILED)
        say(_PREDICTED.format(version=torch.__version__.partition("+")[0]))
        return _assemble(graph.result.template, graph.run(*tensors))

    def _without_module(self, target: Any) -> Callable[..., Any]:
        """Return a call that does not keep a module alive: its graphs live as long as the compiler."""
        if not isinstance(target, nn.Module):
            return target  # type: ignore[no-any-return]
        module = ref(target)
        return lambda *args, **kwargs: self._call(module(), *args, **kwargs)

    def _key(self, leaves: list[Any], spec: Any, modules: list[nn.Module], named: list[Any]) -> Any:
        keys = [key_of_inputs(leaf) for leaf in leaves]
        if None in keys:
            return None
        autocast = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast
        training = tuple(part.training for module in modules for part in module.modules())
        weights = tuple(key_of_inputs(tensor) for *_, tensor in named)
        return tuple(keys), str(spec), modes, training, weights

    def _trace(self, name: str, call: Callable[..., Any], tensors: list[Tensor]) -> _Graph:
        result = _Result()

        class Traced(nn.Module):
            def forward(self, *traced: Tensor) -> tuple[Tensor, ...]:
                found: list[Tensor] = []
                result.template = _take_apart(call(traced), found, name)
                result.count = len(found)
                return tuple(found)

        with self._compiling(None):
            return _Graph(_compile(Traced(), tensors, self._compiling, result), result)

    @contextmanager
    def _compiling(self, context: Any) -> Iterator[None]:
        """Suspend the pretended device: what is traced has no memory on it."""
        recorder, position = self._recorder, self._recorder.position
        before = self.is_tracing, recorder.making_on_meta
        with Patches() as patches:
            patches.enter_context(without_modes())
            patches.enter_context(_without_function_modes())
            patches.put(nn.Module, "__call__", self._call)
            patches.put(torch, "tensor", partial(_tensor, torch.tensor))
            _differentiate_composed(patches)
            if context is not None:
                _enter_inductor(patches, context)
            position.phases.append("compile")
            self.is_tracing = recorder.making_on_meta = True
            try:
                yield
            finally:
                self.is_tracing, recorder.making_on_meta = before
                position.phases.pop()


_FUSED = {"Adadelta", "Adagrad", "Adam", "Adamax", "AdamW", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"}
"""torch's optimizers whose compiled step is one pass over each parameter, gradient and state."""


def _is_fused_step(target: Any) -> bool:
    kind = type(getattr(target, "__self__", None))
    return kind.__module__.startswith("torch.optim") and kind.__name__ in _FUSED and target.__name__ == "step"


def _step_in_place(step: Any) -> None:
    """Run the step without its arithmetic: states are created, and compiled kernels write them and the weights."""
    optimizer = step.__self__
    names = inspect.unwrap(type(optimizer).step).__globals__
    for group in optimizer.param_groups:
        if "capturable" in group and not any(weight in optimizer.state for weight in group["params"]):
            # As torch's compiler does: the number of steps is then on the card.
            group["capturable"] = True
    with Patches() as patches:
        patches.put(torch.compiler, "is_compiling", lambda: True)
        function = names["__name__"].rpartition(".")[2]
        patches.restore(names, function)
        names[function] = _momentum_of_first_step if isinstance(optimizer, torch.optim.SGD) else lambda *_, **__: None
        step()


def _momentum_of_first_step(_: Any, gradients: list[Tensor], buffers: list[Tensor | None], **settings: Any) -> None:
    for at, buffer in enumerate(buffers):
        if buffer is None and settings["momentum"]:
            buffers[at] = torch.empty_like(gradients[at])


@contextmanager
def _without_function_modes() -> Iterator[None]:
    # Disabling functions is not enough: torch's compiler enables them again.
    modes = [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]
    try:
        yield
    finally:
        for mode in reversed(modes):
            torch._C._push_on_torch_function_stack(mode)


def _differentiate_composed(patches: Patches) -> None:
    """Let autograd see the parts of operators that torch composes of others.

    torch's Python dispatcher takes a decomposition that is registered for `meta` for a kernel of that device, and then
    has no gradient for the operator: `nll_loss`, `var` and `where` of a number would end the backward.
    """
    from torch._decomp import global_decomposition_table

    keys = torch._C.DispatchKey
    operators: set[Any] = {one for table in global_decomposition_table.values() for one in table}
    for operator in operators:
        if not isinstance(operator, torch._ops.OpOverload) or keys.Meta not in operator.py_kernels:
            continue
        has_kernel = partial(torch._C._dispatch_has_kernel_for_dispatch_key, cast(Any, operator).name())
        if has_kernel("CompositeImplicitAutograd") and not has_kernel("AutogradMeta"):
            patches.restore(operator._dispatch_cache, keys.AutogradMeta)
            operator._dispatch_cache[keys.AutogradMeta] = keys.CompositeImplicitAutograd


def _tensor(create: Callable[..., Tensor], data: Any, **kwargs: Any) -> Tensor:
    """`torch.tensor` of numbers: on `meta` torch makes one that the trace does not know."""
    if "meta" not in str(kwargs.get("device")):
        return create(data, **kwargs)
    with without_modes():
        numbers = create(data, **{**kwargs, "device": "cpu", "requires_grad": False})
    return torch.empty(numbers.shape, dtype=numbers.dtype, device="meta")


def _modules_of(target: Any) -> list[nn.Module]:
    """Return the modules that a callable reads: itself, what it is bound to, closes over, or names."""
    found: dict[int, nn.Module] = {}

    def add(value: Any) -> None:
        if isinstance(value, nn.Module):
            found[id(value)] = value
        elif isinstance(value, MethodType):
            add(value.__self__)
            add(value.__func__)
        elif isinstance(value, partial):
            for part in (value.func, *value.args, *value.keywords.values()):
                add(part)
        elif isinstance(value, FunctionType):
            for part in captured_by(value):
                if isinstance(part, nn.Module | MethodType):
                    add(part)

    add(target)
    return list(found.values())


class _CardIsMeta(TorchFunctionMode):
    """Makes on `meta` what the traced code makes on the card."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.cuda:
            return args[0]
        kwargs = {name: _meta_for_card(value) for name, value in (kwargs or {}).items()}
        if type(kwargs.get("device")) is int:
            # From `cuda()` of tensors that torch traces.
            kwargs["device"] = torch.device("meta")
        if func in _ADDS and isinstance(kwargs.get("alpha"), Tensor):
            # Autograd would read the number; torch's compiler multiplies.
            given = [*args, *(kwargs[name] for name in ("other",) if name in kwargs)]
            return func(given[0], given[1] * kwargs["alpha"])
        if func is Tensor.new_tensor:
            kwargs["device"] = _meta_for_card(kwargs.get("device") or args[0].device)
            return torch.tensor(*args[1:], **kwargs)
        return func(*map(_meta_for_card, args), **kwargs)


_ADDS = {torch.add, torch.sub, Tensor.add, Tensor.add_, Tensor.sub, Tensor.sub_}


def _meta_for_card(value: Any) -> Any:
    if isinstance(value, str | torch.device) and str(value).partition(":")[0] == "cuda":
        return torch.device("meta")
    return value


class _Place(NamedTuple):
    """Stands for a tensor among the arguments of a call; a graph holds none of the program's own."""

    at: int


@dataclass(frozen=True)
class _Object:
    """Stands for an object that holds tensors, such as a cache of keys and values."""

    kind: type
    attributes: dict[str, Any]


def _take_apart(value: Any, found: list[Tensor], name: str, around: tuple[int, ...] = ()) -> Any:
    """Return the structure of a result, and add its tensors to those found."""
    if isinstance(value, Tensor):
        found.append(value)
        return _Place(len(found) - 1)
    leaves, spec = tree_flatten(value)
    if len(leaves) != 1 or leaves[0] is not value:
        return [_take_apart(leaf, found, name, around) for leaf in leaves], spec
    if isinstance(value, str | int | float | complex | bytes | type | torch.dtype | torch.device | None):
        return value
    if isinstance(value, nn.Module) or not hasattr(value, "__dict__") or callable(value) or id(value) in around:
        raise not_predicted(name, f"it returns a {type(value).__name__}")
    inside = (*around, id(value))
    return _Object(type(value), {key: _take_apart(one, found, name, inside) for key, one in vars(value).items()})


def _assemble(template: Any, tensors: Sequence[Tensor]) -> Any:
    if isinstance(template, _Place):
        return tensors[template.at]
    if isinstance(template, tuple):
        leaves, spec = template
        return tree_unflatten([_assemble(leaf, tensors) for leaf in leaves], spec)
    if not isinstance(template, _Object):
        return template
    made: Any = object.__new__(template.kind)
    vars(made).update({name: _assemble(one, tensors) for name, one in template.attributes.items()})
    return made


def _run_with(
    run: Callable[..., Any],
    weights: list[tuple[ref[nn.Module], dict[str, int]]],
    parts: list[Any],
    spec: Any,
    traced: Any,
) -> Any:
    """Call with traced tensors in the places of the program's own."""
    args, kwargs = tree_unflatten([traced[part.at] if isinstance(part, _Place) else part for part in parts], spec)
    with Patches() as patches:
        for owner, places in weights:
            model = cast(nn.Module, owner())
            patches.enter_context(_reparametrize_module(model, {name: traced[at] for name, at in places.items()}))
            for module in model.modules():
                patches.callback(_restore, module, dict(vars(module)))
        patches.put(torch.compiler, "is_compiling", lambda: True)
        patches.enter_context(_CardIsMeta())
        return run(*args, **kwargs)


def _restore(module: nn.Module, attributes: dict[str, Any]) -> None:
    """Put attributes back that a traced call has set, such as a cache of positions; each trace makes its own."""
    vars(module).clear()
    vars(module).update(attributes)


def _compile(
    traced: nn.Module, tensors: list[Tensor], compiling: Callable[[Any], Any], result: _Result
) -> Callable[..., Any]:
    """Trace, divide and compile with inductor; return the function of the tensors."""
    from torch._functorch.aot_autograd import aot_module_simplified
    from torch._guards import TracingContext
    from torch._inductor import compile_fx as inductor
    from torch._inductor.decomposition import select_decomp_table
    from torch._subclasses import FakeTensor, FakeTensorMode

    fake = FakeTensorMode()
    # One for all steps: by what the forward notes in it, the backward writes into tensors that were saved for it alone.
    context = TracingContext(fake)

    def without_memory(tensor: Tensor, device: torch.device) -> Any:
        with without_modes():
            like = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        return FakeTensor(fake, like, device)

    def on_card(value: Any) -> Any:
        if isinstance(value, torch.device):
            return _CARD if value.type == "meta" else value
        if not isinstance(value, Tensor) or value.device.type != "meta":
            return value
        with without_modes():
            # Of the same storage, which says what is a view of what.
            like = torch.empty(0, dtype=value.dtype, device="meta")
            like.set_(value.untyped_storage(), value.storage_offset(), value.size(), value.stride())
        return FakeTensor(fake, like, _CARD)

    def move(graph: Any, inputs: Any) -> Any:
        for node in graph.graph.nodes:
            node.args, node.kwargs = tree_map(on_card, (node.args, node.kwargs))
            if "val" in node.meta:
                node.meta["val"] = tree_map(on_card, node.meta["val"])
        return tree_map(on_card, inputs)

    extra = inductor.create_compiler_config_extra(torch.fx.GraphModule({}, torch.fx.Graph()))

    def forward(graph: Any, inputs: Any, is_inference: bool = False) -> Any:
        with compiling(context):
            inputs = move(graph, inputs)
            count = len(tensors)
            return inductor.compile_fx_forward(graph, inputs, result.count, count, extra, is_inference=is_inference)

    def backward(graph: Any, inputs: Any) -> Any:
        with compiling(context):
            return inductor.compile_fx_backward(graph, move(graph, inputs), extra)

    def divide(graph: Any, inputs: Any, **kwargs: Any) -> Any:
        with compiling(context):
            return inductor.partition_fn(graph, move(graph, inputs), **kwargs)

    examples = [without_memory(one, torch.device("meta")).requires_grad_(one.requires_grad) for one in tensors]
    with compiling(context):
        return aot_module_simplified(  # type: ignore[no-any-return]
            traced,
            examples,
            fw_compiler=forward,
            bw_compiler=backward,
            inference_compiler=partial(forward, is_inference=True),
            partition_fn=divide,
            decompositions=select_decomp_table(),
            keep_inference_input_mutations=True,
        )


def _enter_inductor(patches: Patches, context: Any) -> None:
    """Let inductor plan for a card that is not there, and write code whose kernels do nothing."""
    import torch._inductor.config as settings
    import torch._inductor.scheduler as scheduler
    from torch._dynamo import compiled_autograd
    from torch._functorch import config as tracing
    from torch._higher_order_ops.flex_attention import FlexAttentionHOP
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.fx_passes import joint_graph, post_grad
    from torch._inductor.utils import get_triton_attrs_descriptor_version
    from torch._inductor.virtualized import V
    from torch.nn.attention import flex_attention
    from torch.utils import _triton, checkpoint

    for passes in (joint_graph, post_grad):
        # Their patterns are traced with autograd.
        init = passes.lazy_init
        patches.put(passes, "lazy_init", lambda *_, init=init: init(torch.device("cpu")))
    folder = joint_graph.UniformValueConstantFolder
    patches.put(folder, "_deduce_value", partialmethod(_fold_on_host, folder._deduce_value))
    get_triton_attrs_descriptor_version()
    if not _triton.has_triton_package():
        # Both answers are remembered. The text of kernels imports it, and so does the written code.
        for name in ("triton", "triton.language"):
            patches.restore(sys.modules, name)
            sys.modules[name] = _Absent(name)
    patches.put(_triton, "triton_hash_with_backend", lambda: "")
    patches.put(scheduler, "has_triton", lambda *_: True)
    patches.put(AsyncCompile, "triton", lambda *_, **__: _Kernel())
    patches.put(PyCodeCache, "load_by_key_path", _load_written_code)
    patches.put(flex_attention, "_validate_device", lambda *_: None)
    patches.put(FlexAttentionHOP, "__call__", _flex_attention_of)
    generator = checkpoint._checkpoint_without_reentrant_generator
    patches.put(checkpoint, "_checkpoint_without_reentrant_generator", partial(_tag_checkpoint, generator))
    patches.put(checkpoint.CheckpointFunction, "apply", _checkpoint_of)
    patches.enter_context(settings.patch(fx_graph_cache=False, compile_threads=1))
    patches.enter_context(tracing.patch(enable_autograd_cache=False, unlift_effect_tokens=True))
    patches.enter_context(V.set_fake_mode(context.fake_mode))
    for name, answer in _GUARDED.items():
        method = partialmethod(_without_guard, getattr(Tensor, name), answer)
        patches.put(Tensor, name, method)
    patches.enter_context(torch._guards.tracing(context))
    patches.enter_context(compiled_autograd._disable())


def _fold_on_host(folder: Any, fold: Callable[[Any, Any], Any], node: Any) -> Any:
    """Compute a constant of a graph on the host, where it has values."""
    args, kwargs = node.args, node.kwargs
    node.args, node.kwargs = tree_map(lambda one: torch.device("cpu") if one == _CARD else one, (args, kwargs))
    try:
        return fold(folder, node)
    finally:
        node.args, node.kwargs = args, kwargs


_CHECKPOINTS = count()


def _tag_checkpoint(
    generator: Callable[..., Any], run: Any, _preserve: Any, context_fn: Any, *rest: Any, **kw: Any
) -> Iterator[None]:
    """Mark what a checkpoint computes, so that torch's partitioner computes it again in the backward."""
    from torch.fx import traceback as fx_traceback
    from torch.utils import checkpoint

    create: Callable[..., Any] = checkpoint.create_selective_checkpoint_contexts
    check, debug, _early_stop, *args = rest
    number = next(_CHECKPOINTS)

    def contexts() -> tuple[Any, Any]:
        if context_fn is checkpoint.noop_context_fn:
            forward, again = create(_recompute)
        else:
            forward, again = context_fn()
        forward.ac_graph_id = number
        return forward, again

    before = dict(fx_traceback.current_meta)
    # Random numbers are the compiler's, which repeats them.
    yield from generator(run, False, contexts, check, debug, False, *args, **kw)
    # The next operators are not of this checkpoint.
    fx_traceback.current_meta = before


def _recompute(*_: Any, **__: Any) -> Any:
    return torch.utils.checkpoint.CheckpointPolicy.PREFER_RECOMPUTE


def _checkpoint_of(run: Callable[..., Any], _preserve: bool, *args: Any) -> Any:
    """Run a reentrant checkpoint as the other kind, as torch's compiler does."""
    return torch.utils.checkpoint.checkpoint(run, *args, use_reentrant=False)


def _without_guard(
    tensor: Tensor, method: Callable[..., Any], answer: Callable[..., Any], *args: Any, **kw: Any
) -> Any:
    """Answer a method that chooses the CUDA device first, which a torch without CUDA refuses."""
    return (answer if tensor.device.type == "cuda" else method)(tensor, *args, **kw)


def _indexed(tensor: Tensor, index: Any) -> Tensor:
    parts = list(index) if isinstance(index, tuple) else [index]
    if any(isinstance(part, Tensor | list) for part in parts):
        return aten.index.Tensor(tensor, parts)  # type: ignore[no-any-return]
    at = 0
    for number, part in enumerate(parts):
        if part is Ellipsis:
            at = tensor.dim() - sum(later is not None for later in parts[number + 1 :])
        elif part is None:
            tensor, at = tensor.unsqueeze(at), at + 1
        elif isinstance(part, slice):
            tensor, at = aten.slice.Tensor(tensor, at, part.start, part.stop, part.step or 1), at + 1
        else:
            tensor = tensor.select(at, part)
    return tensor


def _contiguous(tensor: Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> Tensor:
    if tensor.is_contiguous(memory_format=memory_format):
        return tensor
    return tensor.clone(memory_format=memory_format)


_GUARDED: dict[str, Callable[..., Any]] = {
    "__invert__": torch.bitwise_not,
    "__getitem__": _indexed,
    "contiguous": _contiguous,
    "copy_": aten.copy_.default,
    "nonzero": aten.nonzero.default,
}


# Flex attention is one kernel forward and one backward. Its functions of scores and masks are part of them, and the
# trace has them as operators that take the tensors of the mask.

_OPERATORS: Any = torch.library.Library("memviz", "DEF")  # type: ignore[no-untyped-call]
_OPERATORS.define("flex_attention(Tensor query, Tensor key, Tensor value, Tensor[] mask) -> (Tensor, Tensor)")
_OPERATORS.define(
    "flex_attention_backward(Tensor gradient, Tensor sums, Tensor products, Tensor query, Tensor key, Tensor value, "
    "Tensor[] mask) -> (Tensor, Tensor, Tensor)"
)


def _flex_backward(gradient: Tensor, sums: Tensor, products: Tensor, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value, _mask = inputs
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


_OPERATORS.impl("flex_attention", lambda query, key, value, mask: flex_results(query, value), "Meta")
_OPERATORS.impl("flex_attention_backward", _flex_backward, "Meta")


class _TracedFlexAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, *mask: Tensor) -> tuple[Tensor, Tensor]:
        output, sums = torch.ops.memviz.flex_attention(query, key, value, list(mask))
        ctx.save_for_backward(query, key, value, output, sums, *mask)
        ctx.mark_non_differentiable(sums)
        return output, sums

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, sums, *mask = ctx.saved_tensors
        products = (gradients[0] * output).float().sum(-1)
        inputs = (gradients[0], sums, products, query, key, value, mask)
        return (*torch.ops.memviz.flex_attention_backward(*inputs), *(None for _ in mask))


def _flex_attention_of(_: Any, *args: Any) -> tuple[Tensor, ...]:
    """In the place of the operator's call: its query, key and value, a function of scores, and a mask of blocks."""
    query, key, value, _score_mod, mask, *_others = args
    parts = [part for part in mask if isinstance(part, Tensor)]
    output, sums = _TracedFlexAttention.apply(*flex_inputs(query, key, value), *parts)  # type: ignore[no-untyped-call]
    return output, sums, query.new_empty(0)


class _Kernel:
    """A kernel, which takes no memory beside its arguments."""

    def run(self, *_: Any, **__: Any) -> None:
        pass


class _Absent(ModuleType):
    """Stands for Triton, which the written code imports for its kernels."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "primitive_bitwidth":
            # Of a dtype, as in int64: the workspace of a scan depends on it.
            return int("".join(filter(str.isdigit, self.__name__)) or 8)
        return _Absent(name)

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self


def _load_written_code(key: str, path: str, linemap: Any = None, attrs: dict[str, Any] | None = None) -> ModuleType:
    """Load what inductor wrote, with allocations on the pretended device."""
    module = ModuleType(f"compiled_{key}")
    module.__file__ = path
    with open(path) as file:
        exec(compile(file.read(), path, "exec"), module.__dict__)
    vars(module).update(
        attrs or {},
        empty_strided_cuda=_empty_strided,
        assert_size_stride=lambda *_: None,
        assert_alignment=lambda *_: None,
        copy_if_misaligned=lambda tensor: tensor,
        get_raw_stream=lambda _: 0,
    )
    return module


def _empty_strided(size: Any, stride: Any, dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device="cuda")
