"""Code under torch.compile, with the memory that its compiled kernels take.

torch's own compiler does the work: Dynamo reads frames of Python, AOTAutograd traces their graphs and
divides them into forward and backward, inductor fuses operators and orders, reuses and frees buffers. What inductor
writes is Python that allocates each buffer, launches kernels and calls matrix products and attention. That Python runs
on the pretended device, where kernels do nothing.

Tensors that are traced are on `meta`, because autograd refuses those of a CUDA device that torch was not built for;
graphs are moved to the card once they are traced. No kernel is compiled, so Triton need not be installed.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial, partialmethod
from pathlib import Path
from types import CodeType, FrameType, MethodType, ModuleType
from typing import Any, ClassVar, Literal, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode, _push_mode
from torch.utils._pytree import tree_map

from memviz.predictor.autocast import with_device_renamed
from memviz.predictor.compat import Patches, function_modes, without_function_modes, without_modes
from memviz.predictor.cuda.machine import CardProperties
from memviz.predictor.decompositions import flex_inputs, flex_results
from memviz.predictor.recorder import AllocationRecorder
from memviz.predictor.rules import COMPILED

aten = torch.ops.aten

Compiles = bool | Literal["ideal"]
"""Run code under torch.compile compiled, or "ideal": with nothing but inputs and results of its graphs in memory."""
_CARD, _META = torch.device("cuda:0"), torch.device("meta")
_OWN = str(Path(__file__).parents[1])
_LIBRARY = str(Path(contextlib.__file__).parent)
_PREDICTED = (
    "Code under torch.compile is predicted with the graphs and buffers planned by the compiler of torch {version}. "
    "Kernels and padding chosen by timing are not followed."
)
_IDEAL = (
    "Code under torch.compile is predicted with ideal fusion, a lower bound: of each graph only inputs, results and "
    "what torch {version} saves for its backward are in memory."
)
_STOPPED = "{name} ran uncompiled, operator by operator: torch's compiler failed ({reason})."
_BACKEND = (
    'The backend "{name}" of torch.compile is not predicted: its graphs ran uncompiled, operator by operator. A '
    'backend that fuses operators needs less (--ideal-fusion is the lower bound); "inductor" is predicted.'
)
_BROKEN = "torch.compile breaks its graph at {where} ({reason}): each part is compiled separately."
_PARTS_OF_BACKWARD = "Compiled autograd is not predicted: the backward of each graph is compiled separately."
_FUSED_STEP = (
    "A compiled optimizer step is predicted to create its states and to update them and the weights in place, without "
    "buffers."
)


class Compiler:
    """Compiles what a program gives to torch.compile, frame by frame as torch does, and runs the compiled code."""

    def __init__(self, recorder: AllocationRecorder, call: Callable[..., Any], kind: Compiles) -> None:
        """`call` is torch's own `nn.Module.__call__`."""
        self._recorder = recorder
        self._call = call
        self._is_ideal = kind == "ideal"
        self.bound = ""
        """How the compiled code ran, in the words of `Estimate.bound`."""
        self._modules: WeakKeyDictionary[nn.Module, Callable[..., Any]] = WeakKeyDictionary()
        self._backends: dict[str, Callable[..., Any]] = {}
        self._inside: nn.Module | None = None
        self.is_tracing = False
        _read_tables()

    def follow(self, patches: Patches) -> None:
        from torch._dynamo import compiled_autograd

        say = self._recorder.assumptions.say

        def ignore_compiled_autograd(*_: Any, **__: Any) -> contextlib.nullcontext[None]:
            say(_PARTS_OF_BACKWARD)
            return contextlib.nullcontext()

        patches.put(compiled_autograd, "_enable", ignore_compiled_autograd)
        patches.put(_Kernel, "launched", staticmethod(lambda: self._recorder.launched()))
        notes = _FrameNotes(
            broken=lambda where, reason: say(_BROKEN.format(where=where, reason=reason)),
            stopped=lambda name, reason: say(_STOPPED.format(name=name, reason=reason)),
        )
        _follow_frames(patches, partial(self._compiling, None), notes)

    def compiled(
        self,
        target: Any,
        *,
        fullgraph: bool = False,
        dynamic: bool | None = None,
        backend: str | Callable[..., Any] = "inductor",
        options: dict[str, Any] | None = None,
        **others: Any,
    ) -> Any:
        """Return what a program uses in the place of a function; a module stays, and is compiled where it is called."""
        if self.is_tracing or isinstance(target, type) or not callable(target):
            return target
        if _is_fused_step(target):
            return partial(self._step, target)
        settings = {name.replace("-", "_"): value for name, value in (options or {}).items()}
        is_planned = backend == "inductor" or (self._is_ideal and isinstance(backend, str) and backend != "eager")
        new = partial(self._compile, settings) if is_planned else partial(self._as_graph_says, backend)
        # Dynamo shares compiled code between calls of `torch.compile` whose backends are equal.
        compile_graph = self._backends.setdefault(repr((backend, settings, dynamic, others)), new)
        optimize = torch._dynamo.optimize(compile_graph, nopython=fullgraph, dynamic=dynamic)
        if not isinstance(target, nn.Module):
            return optimize(target)
        self._modules[target] = optimize
        return target

    def instead_of(self, module: nn.Module) -> Callable[..., Any] | None:
        """Return the compiled call of a module that the program has compiled."""
        optimize = None if self.is_tracing or module is self._inside else self._modules.get(module)
        return (
            None if optimize is None else partial(self._call_compiled, module, optimize(_frame_of(module, self._call)))
        )

    def _call_compiled(self, module: nn.Module, run: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        # Where the graph breaks, the frame around the module calls it again.
        before, self._inside = self._inside, module
        try:
            return run(*args, **kwargs)
        finally:
            self._inside = before

    def _step(self, step: Any) -> None:
        self._recorder.operators.add(COMPILED)
        self._recorder.assumptions.say(_FUSED_STEP)
        # Run the step without its arithmetic: states are created, and compiled kernels write them and the weights.
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
            names[function] = (
                _momentum_of_first_step if isinstance(optimizer, torch.optim.SGD) else lambda *_, **__: None
            )
            step()

    def _compile(self, settings: dict[str, Any], graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        say = self._recorder.assumptions.say
        ideal = partial(_run_ideally, self._recorder) if self._is_ideal else None
        try:
            run = _compile(graph, inputs, partial(self._compiling, settings=settings), ideal)
        except Exception as error:
            errors = torch._dynamo.exc
            if isinstance(error, errors.TorchDynamoException) and not isinstance(error, errors.BackendCompilerFailed):
                # Dynamo reads the frame again, with what it has learned.
                raise
            self.bound = "eager"
            say(_STOPPED.format(name="A graph of compiled code", reason=_first_line(error)))
            return cast(Callable[..., Any], _rename_devices(graph, _card_for_meta).forward)
        self._recorder.operators.add(COMPILED)
        self.bound = self.bound or ("ideal fusion" if self._is_ideal else "")
        say((_IDEAL if self._is_ideal else _PREDICTED).format(version=torch.__version__.partition("+")[0]))
        return run

    def _as_graph_says(self, backend: Any, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        """Run a graph operator by operator, or what a program's own backend makes of it."""
        _rename_devices(graph, _card_for_meta)
        if callable(backend):
            return backend(graph, inputs)  # type: ignore[no-any-return]
        if backend != "eager":
            self.bound = "eager"
            self._recorder.assumptions.say(_BACKEND.format(name=backend))
        return cast(Callable[..., Any], graph.forward)

    @contextmanager
    def _compiling(self, context: Any, settings: dict[str, Any] | None = None) -> Iterator[None]:
        """Suspend the pretended device: what is traced has no memory on it. `settings` are inductor's."""
        phases = self._recorder.position.phases
        with Patches() as patches:
            patches.enter_context(without_modes())
            patches.enter_context(without_function_modes())
            patches.put(nn.Module, "__call__", self._call)
            for owner in (torch.autograd, torch.autograd.graph):
                # The prediction enters its modes there.
                patches.put(owner, "_engine_run_backward", inspect.unwrap(vars(owner)["_engine_run_backward"]))
            _differentiate_composed(patches)
            asks = torch._C.is_autocast_enabled
            if context is not None:
                patches.enter_context(torch._inductor.config.patch(settings or {}))
                _enter_inductor(patches, context)
                asks = with_device_renamed(asks)
            # Dynamo reads no code of the prediction.
            patches.put(torch, "is_autocast_enabled", asks)
            # Of torch's functions that are False, one that Dynamo takes for a constant: there is no fused inference.
            patches.put(torch.backends.mha, "get_fastpath_enabled", torch.jit.is_scripting)
            patches.put(self, "is_tracing", True)
            patches.put(self._recorder, "making_on_meta", True)
            phases.append("compile")
            patches.callback(phases.pop)
            yield


# Frames: torch's own front end on pretended tensors. The graph's devices are changed to `meta`, and the modes of the
# prediction are left while a frame is read.


@dataclass(frozen=True)
class _FrameNotes:
    broken: Callable[[str, str], None]
    """Called with the place of a break of the graph, and its reason."""
    stopped: Callable[[str, str], None]
    """Called with the name of a frame that runs uncompiled, and the reason."""


@cache
def _read_tables() -> None:
    """Let Dynamo build its tables of torch's functions from torch's own, before any is replaced."""
    from torch._dynamo import trace_rules, utils
    from torch._dynamo.variables.builder import SourcelessBuilder
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

    trace_rules.get_torch_obj_rule_map()
    TorchInGraphFunctionVariable._get_handlers()
    # Properties of the card are constants of a graph, as those of CUDA are.
    utils.common_constant_types.add(CardProperties)
    SourcelessBuilder._type_handlers[CardProperties] = SourcelessBuilder._type_handlers[torch.dtype]
    # Code of the prediction runs where a graph is broken.
    trace_rules.add("memviz")


def _follow_frames(patches: Patches, compiling: Callable[[], Any], notes: _FrameNotes) -> None:
    """Let Dynamo work on pretended tensors until the patches end; `compiling` leaves the prediction's modes."""
    from torch._dynamo import config, convert_frame, guards, output_graph, trace_rules, utils
    from torch._dynamo.variables.tensor import TensorVariable
    from torch._functorch._aot_autograd.runtime_wrappers import FakifiedOutWrapper

    torch._dynamo.reset()
    patches.callback(torch._dynamo.reset)
    patches.enter_context(config.patch(suppress_errors=True))
    modes: list[Any] = []
    convert = convert_frame.CatchErrorsWrapper.__call__
    check = guards.CheckFunctionManager.__init__

    def read(self: Any, frame: Any, *args: Any) -> Any:
        if _is_called_by_us(sys._getframe(1)):
            return convert_frame.ConvertFrameReturn(skip_reason="called by the prediction")
        if trace_rules.check(frame.f_code, frame=frame):
            return convert(self, frame, *args)
        before = list(modes)
        modes[:] = [*function_modes(), *_get_current_dispatch_mode_stack()]
        try:
            with compiling():
                return convert(self, frame, *args)
        finally:
            modes[:] = before

    def guard(self: Any, *args: Any, **kwargs: Any) -> None:
        # Guards compare dispatch keys, and they are checked where the modes are on.
        with _entered_modes(modes):
            check(self, *args, **kwargs)

    def ignore_function_modes(self: Any, _: Any) -> None:
        self.check_fn_manager.torch_function_mode_stack_check_fn = lambda: True

    patches.put(convert_frame.CatchErrorsWrapper, "__call__", read)
    patches.put(guards.CheckFunctionManager, "__init__", guard)
    patches.put(guards.GuardBuilder, "TORCH_FUNCTION_STATE", ignore_function_modes)
    patches.put(utils, "_get_fake_value_impl", partial(_on_meta, utils._get_fake_value_impl))
    for name in ("method_attr_device", "method_attr_is_cuda"):
        patches.put(TensorVariable, name, partialmethod(_as_on_card, vars(TensorVariable)[name]))
    patches.put(output_graph, "graph_break_reasons", _Breaks(notes.broken))
    prepare = FakifiedOutWrapper.pre_compile

    def prepare_on_meta(self: Any, *args: Any, **kwargs: Any) -> None:
        # What one part of a divided graph returns is traced with the next.
        prepare(self, *args, **kwargs)
        self.out_metas = [_moved_to(_META, one, getattr(one, "fake_mode", None)) for one in self.out_metas]

    patches.put(FakifiedOutWrapper, "pre_compile", prepare_on_meta)
    explain, exceeds = convert_frame.format_error_msg, convert_frame.exceeds_recompile_limit

    def note_failure(error: Exception, code: CodeType, *args: Any) -> str:
        if not code.co_flags & inspect.CO_GENERATOR:
            notes.stopped(code.co_name, _first_line(error))
        return str(explain(error, code, *args))

    def note_limit(*args: Any) -> Any:
        is_exceeded, limit = exceeds(*args)
        if is_exceeded:
            frame = sys._getframe(1)
            notes.stopped(frame.f_locals["code"].co_name, f"it was compiled as often as {limit} allows")
        return is_exceeded, limit

    patches.put(convert_frame, "format_error_msg", note_failure)
    patches.put(convert_frame, "exceeds_recompile_limit", note_limit)


def _frame_of(module: nn.Module, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return what Dynamo compiles of a module: its forward without its hooks, or one frame around torch's own."""
    from torch._dynamo import external_utils, trace_rules

    if isinstance(module.forward, MethodType) and trace_rules.check(module.forward):
        return cast(Callable[..., Any], external_utils.wrap_inline(module))
    return MethodType(call, module)


class _Breaks(list[Any]):
    def __init__(self, note: Callable[[str, str], None]) -> None:
        super().__init__()
        self._note = note

    def append(self, reason: Any) -> None:
        last = reason.user_stack[-1] if reason.user_stack else None
        # The optimizer for DDP has a file and no line.
        where = f"{Path(last.filename).name}:{last.lineno}" if last and last.lineno else "the buckets of DDP"
        self._note(where, _first_line(reason.reason))


def _first_line(text: object) -> str:
    return " ".join(str(text).strip().split("\n")[0].split())[:160] or type(text).__name__


def _is_called_by_us(caller: FrameType | None) -> bool:
    """Tell whether the prediction's own code runs a frame, directly or through Python's library."""
    while caller is not None and caller.f_code.co_filename.startswith(_LIBRARY):
        caller = caller.f_back
    return caller is not None and caller.f_code.co_filename.startswith(_OWN)


def _as_on_card(variable: Any, answer: Callable[[Any, Any], Any], tx: Any) -> Any:
    before = variable.device
    if before is not None and before.type == "meta":
        variable.device = _CARD
    try:
        return answer(variable, tx)
    finally:
        variable.device = before


@contextmanager
def _entered_modes(modes: list[Any]) -> Iterator[None]:
    functions = [mode for mode in modes if isinstance(mode, TorchFunctionMode)]
    operators = [mode for mode in modes if mode not in functions]
    for mode in functions:
        torch._C._push_on_torch_function_stack(mode)
    for mode in operators:
        _push_mode(mode)
    try:
        yield
    finally:
        for _ in operators:
            _pop_mode()
        for _ in functions:
            torch._C._pop_torch_function_stack()


def _moved_to(device: torch.device, value: Any, fake: Any) -> Any:
    """Return a traced tensor as on another device, in the same storage, which says what is a view of what."""
    if not isinstance(value, FakeTensor) or value.device == device:
        return value
    with without_modes():
        like = torch.empty(0, dtype=value.dtype, device="meta")
        like.set_(value.untyped_storage(), value.storage_offset(), value.size(), value.stride())
    return FakeTensor(fake, like, device)


def _rename_devices(graph: torch.fx.GraphModule, rename: Callable[[Any], Any]) -> torch.fx.GraphModule:
    """Move a graph to another device, in place: tracing names `meta` for the card."""
    for part in graph.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:
                _rename_devices_of(node, rename)
            part.recompile()
    return graph


def _rename_devices_of(node: Any, rename: Callable[[Any], Any]) -> None:
    node.args, node.kwargs = (torch.fx.node.map_aggregate(part, rename) for part in (node.args, node.kwargs))


def _card_for_meta(value: Any) -> Any:
    return _CARD if isinstance(value, torch.device) and value.type == "meta" else value


def _on_meta(run: Callable[..., Any], node: Any, *args: Any, **kwargs: Any) -> Any:
    if node.op == "call_method" and node.target == "cuda":
        node.target, node.args, node.kwargs = "to", (node.args[0], _META), {}
    elif node.op in ("call_method", "call_function"):
        _rename_devices_of(node, _meta_for_card)
        if node.target is torch.tensor:
            node.target = _tensor
    return run(node, *args, **kwargs)


def _meta_for_card(value: Any) -> Any:
    is_card = isinstance(value, str | torch.device) and str(value).partition(":")[0] == "cuda"
    return _META if is_card else value


def _tensor(data: Any, **kwargs: Any) -> Tensor:
    """`torch.tensor` of numbers: on `meta` torch makes one that the trace does not know."""
    if "meta" not in str(kwargs.get("device")):
        return torch.tensor(data, **kwargs)
    with without_modes():
        numbers = torch.tensor(data, **{**kwargs, "device": "cpu", "requires_grad": False})
    return torch.empty(numbers.shape, dtype=numbers.dtype, device="meta")


_FUSED = {"Adadelta", "Adagrad", "Adam", "Adamax", "AdamW", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"}
"""torch's optimizers whose compiled step is one pass over each parameter, gradient and state."""


def _is_fused_step(target: Any) -> bool:
    kind = type(getattr(target, "__self__", None))
    return kind.__module__.startswith("torch.optim") and kind.__name__ in _FUSED and target.__name__ == "step"


def _momentum_of_first_step(_: Any, gradients: list[Tensor], buffers: list[Tensor | None], **settings: Any) -> None:
    for at, buffer in enumerate(buffers):
        if buffer is None and settings["momentum"]:
            buffers[at] = torch.empty_like(gradients[at])


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


def _compile(graph: torch.fx.GraphModule, inputs: list[Any], compiling: Any, ideal: Any) -> Callable[..., Any]:
    """Trace a graph with its gradients, divide it and compile it with inductor; `ideal` runs the parts instead."""
    from torch._dynamo.utils import counters
    from torch._functorch.aot_autograd import aot_module_simplified
    from torch._guards import TracingContext
    from torch._inductor import compile_fx as inductor
    from torch._inductor.decomposition import select_decomp_table

    # DDP, which divides graphs by its buckets, reads it to know whether a part is compiled.
    counters["aot_autograd"]["total"] += 1
    # One for all steps: by what the forward notes in it, the backward writes into tensors that were saved for it alone.
    context = TracingContext.get()
    fake = context.fake_mode
    outputs = len(graph.graph.output_node().args[0])

    def on_card(value: Any) -> Any:
        value = _card_for_meta(value)
        return _moved_to(_CARD, value, fake) if getattr(value, "device", None) == _META else value

    def move(graph: Any, inputs: Any) -> Any:
        for node in graph.graph.nodes:
            node.args, node.kwargs = tree_map(on_card, (node.args, node.kwargs))
            if "val" in node.meta:
                node.meta["val"] = tree_map(on_card, node.meta["val"])
        return tree_map(on_card, inputs)

    count = len(inputs)
    extra = inductor.create_compiler_config_extra(torch.fx.GraphModule({}, torch.fx.Graph()))
    extra.cudagraphs.value = False

    def forward(graph: Any, inputs: Any, is_inference: bool = False) -> Any:
        with compiling(context):
            inputs = move(graph, inputs)
            by_inductor = partial(inductor.compile_fx_forward, is_inference=is_inference)
            return ideal(graph) if ideal else by_inductor(graph, inputs, outputs, count, extra)

    def backward(graph: Any, inputs: Any) -> Any:
        with compiling(context):
            inputs = move(graph, inputs)
            return ideal(graph) if ideal else inductor.compile_fx_backward(graph, inputs, extra)

    def divide(graph: Any, inputs: Any, **kwargs: Any) -> Any:
        with compiling(context):
            return inductor.partition_fn(graph, move(graph, inputs), **kwargs)

    with compiling(context):
        return aot_module_simplified(  # type: ignore[no-any-return]
            graph,
            inputs,
            fw_compiler=forward,
            bw_compiler=backward,
            inference_compiler=partial(forward, is_inference=True),
            partition_fn=divide,
            decompositions=select_decomp_table(),
            keep_inference_input_mutations=True,
        )


def _run_ideally(recorder: AllocationRecorder, graph: torch.fx.GraphModule) -> Callable[[list[Any]], list[Any]]:
    """Return a run of a graph as one kernel that needs no memory besides its results, and those after its inputs."""
    for node in graph.graph.nodes:
        if str(node.target) == "graphsafe_run_with_rng_state":
            node.target, *node.args = node.args
            node.kwargs = {name: value for name, value in node.kwargs.items() if name != "rng_state"}
    _rename_devices(graph, _meta_for_card)

    def run(inputs: list[Any]) -> list[Any]:
        before = {one.untyped_storage()._cdata for one in inputs if isinstance(one, Tensor)}
        with Patches() as patches, without_modes(), without_function_modes():
            patches.put(recorder, "making_on_meta", True)
            results = graph(*inputs)
        inputs.clear()
        made: dict[int, torch.UntypedStorage] = {}

        def on_card(value: Any) -> Any:
            if not isinstance(value, Tensor) or (storage := value.untyped_storage())._cdata in before:
                return value
            if storage._cdata not in made:
                made[storage._cdata] = torch.empty(storage.nbytes(), dtype=torch.uint8, device="cuda").untyped_storage()
            like = torch.empty(0, dtype=value.dtype, device="cuda")
            return like.set_(made[storage._cdata], value.storage_offset(), value.size(), value.stride())

        return [on_card(value) for value in results]

    cast(Any, run)._boxed_call = True
    return run


def _enter_inductor(patches: Patches, context: Any) -> None:
    """Let inductor plan for a card that is not there, and write code whose kernels do nothing."""
    import torch._inductor.config as settings
    import torch._inductor.scheduler as scheduler
    from torch._dynamo import compiled_autograd
    from torch._functorch import config as tracing
    from torch._higher_order_ops.flex_attention import FlexAttentionHOP
    from torch._inductor import cpu_vec_isa
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.fx_passes import joint_graph, pad_mm, post_grad
    from torch._inductor.utils import get_triton_attrs_descriptor_version
    from torch._inductor.virtualized import V
    from torch.nn.attention import flex_attention
    from torch.utils import _triton

    for passes in (joint_graph, post_grad):
        # Their patterns are traced with autograd.
        init = passes.lazy_init
        patches.put(passes, "lazy_init", lambda *_, init=init: init(torch.device("cpu")))
    folder = joint_graph.UniformValueConstantFolder
    patches.put(folder, "_deduce_value", partialmethod(_fold_on_host, folder._deduce_value))
    # What no rule decides is timed on the card.
    patches.put(pad_mm, "get_cached_should_pad", lambda _: False)
    get_triton_attrs_descriptor_version()
    if not _triton.has_triton_package():
        # Both answers are remembered. The text of kernels imports it, and so does the written code.
        for name in ("triton", "triton.language"):
            patches.restore(sys.modules, name)
            sys.modules[name] = _Absent(name)
    patches.put(_triton, "triton_hash_with_backend", lambda: "")
    patches.put(scheduler, "has_triton", lambda *_: True)
    for language in ("triton", "cpp", "cpp_pybinding"):
        patches.put(AsyncCompile, language, lambda *_, **__: _Kernel())
    # It would compile a program to find out.
    patches.put(cpu_vec_isa, "valid_vec_isa_list", list)
    patches.put(PyCodeCache, "load_by_key_path", _load_written_code)
    patches.put(flex_attention, "_validate_device", lambda *_: None)
    patches.put(FlexAttentionHOP, "__call__", _flex_attention_of)
    # Nothing can be timed.
    timed = ("max_autotune", "max_autotune_gemm", "max_autotune_pointwise", "coordinate_descent_tuning")
    plan = {**dict.fromkeys(timed, False), "benchmark_fusion": False, "fx_graph_cache": False, "compile_threads": 1}
    patches.enter_context(settings.patch(plan))
    patches.enter_context(tracing.patch(enable_autograd_cache=False, unlift_effect_tokens=True))
    patches.enter_context(V.set_fake_mode(context.fake_mode))
    for name, answer in _GUARDED.items():
        method = partialmethod(_without_guard, getattr(Tensor, name), answer)
        # `Tensor.__getitem__` itself stays: `decompositions.index_with_every_slice` says why.
        for kind in (FakeTensor, FunctionalTensor) if name == "__getitem__" else (Tensor,):
            patches.put(kind, name, method)
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


_OPERATORS.impl("flex_attention", lambda query, key, value, mask: flex_results(query, value), "Meta")
_OPERATORS.impl(
    "flex_attention_backward",
    lambda gradient, sums, products, query, key, value, mask: tuple(map(torch.empty_like, (query, key, value))),
    "Meta",
)


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
    """A kernel, which takes no memory besides its arguments."""

    launched: ClassVar[Callable[[], None]]

    def __call__(self, *_: Any, **__: Any) -> None:
        type(self).launched()

    run = __call__


class _Absent(ModuleType):
    """Replaces Triton, which the generated code imports for its kernels."""

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
        empty_strided_cuda=lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype, device="cuda"),
        assert_size_stride=lambda *_: None,
        assert_alignment=lambda *_: None,
        copy_if_misaligned=lambda tensor: tensor,
        get_raw_stream=lambda _: 0,
    )
    return module
