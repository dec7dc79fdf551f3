"""Weights that rest in a small dtype and are cast up only around the forward pass that computes with them.

What is cast are the matrices: the weight, and the bias beside it, of every module that owns a weight of two dimensions
or more and has no modules with weights below it (linear, convolution, embedding, experts). Vectors, such as norms have,
and buffers of any type stay as they are. `granularity` says how much is up at once and `skip` what never goes down;
what is computed depends on `skip` alone. What to know before using it:

* Values are rounded once, when first stored, and undo does not bring them back; beyond 448 (float8_e4m3fn) or 57344
  (float8_e5m2) they are lost. Casting up and down again changes nothing more.
* Trained weights would lose their small updates, so they are refused: freeze them and train adapters.
* Autograd keeps the weights that a backward pass needs, cast up. So with frozen weights, too, training gains only
  under checkpointing.
* Applied before `model.to("cuda")`, it rounds in host memory, and the wide weights never lie on the card.
* The whole model as one piece saves nothing while it runs, only between runs.
* `ahead` casts the next piece up on a CUDA stream of its own while one computes, so that two pieces are up at once. It
  goes by the order of the forward pass before, and casting down stays on the stream that computes. Where weights wait
  on the host, only those that came together with the piece that computes are cast ahead. There is no `non_blocking`:
  that is about copies between host and device, and a cast on one device never makes anybody wait.
* It comes after splitting feed-forwards and before checkpointing.
* A model that is converted (`.half()`, `.to(dtype)`) or gets other weights is cast again by its next forward pass, and
  then computes in what it was converted to. Until then its weights are as wide as they came.
"""

from __future__ import annotations

import contextlib
import dis
import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import CodeType
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.utils._pytree import tree_map

_DTYPES = {
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
}
_SMALL, _WIDE = ("float8_e4m3fn", "float8_e5m2", "bf16", "fp16"), ("own", "bf16", "fp16", "fp32")
_PIECES, _IMPLEMENTATIONS = ("leaf", "block", "model"), ("memviz", "library")
_TRAINED = (
    "Updates smaller than a step of the storage dtype would be lost: freeze them with requires_grad_(False) and train "
    "adapters, or skip them; for inference, run under torch.no_grad()."
)
_SKIP = "pos_embed,patch_embed,norm,^proj_in$,^proj_out$,lora_,@declared"


def _knob(default: Any, help: str, **more: Any) -> Any:
    return field(default=default, metadata={"help": help, **more})


@dataclass(frozen=True)
class LayerwiseCasting:
    name: ClassVar[str] = "layerwise_casting"
    title: ClassVar[str] = "Layerwise casting (fp8)"
    sentence: ClassVar[str] = "Store weights in fp8; cast each layer up when it runs."
    not_with: ClassVar[Mapping[str, str]] = {}
    claim: ClassVar[Literal["lossy"]] = "lossy"
    environment: ClassVar[Mapping[str, str]] = {}
    needs: ClassVar[Literal["any", "training", "inference"]] = "any"
    shrinks_weights: ClassVar[bool] = True

    storage: str = _knob("float8_e4m3fn", "dtype of stored weights", choices=_SMALL, says="weights in {}")
    compute: str = _knob("own", "compute dtype; own: the model's dtype", choices=_WIDE)
    granularity: str = _knob("leaf", "unit that is cast up at once", choices=_PIECES, says="cast {}-wise")
    skip: str = _knob(_SKIP, "regexes of module names to skip; @declared: those of the model class")
    skip_classes: str = _knob("", "module classes to skip")
    ahead: bool = _knob(False, "cast the next unit on a CUDA stream: two at once, less waiting")
    implementation: str = _knob("memviz", "implementation: this file or diffusers' hooks", choices=_IMPLEMENTATIONS)

    def __post_init__(self) -> None:
        knobs = {"storage": _SMALL, "compute": _WIDE, "granularity": _PIECES, "implementation": _IMPLEMENTATIONS}
        for knob, choices in knobs.items():
            if getattr(self, knob) not in choices:
                raise ValueError(f"{knob} cannot be {getattr(self, knob)!r}; it must be one of {', '.join(choices)}.")
        for pattern in _listed(self.skip):
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} in skip is not a regular expression: {error}.") from None
        if self.ahead and self.granularity == "model":
            raise ValueError("granularity=model has no next unit to cast ahead. Use granularity=leaf or block.")
        if self.compute != "own":
            _check_holds(_DTYPES[self.storage], _DTYPES[self.compute])
        if self.implementation == "library" and (self.granularity != "leaf" or self.ahead or self.skip_classes):
            raise ValueError("diffusers casts leaf by leaf: implementation=library has only storage, compute and skip.")

    def check(self, model: nn.Module, *, training: bool) -> None:
        for name, weight in model.named_parameters():
            if (weight.element_size() == 1 and weight.dtype is not torch.bool) or hasattr(weight, "__tensor_flatten__"):
                raise ValueError(
                    f"{name} is a {type(weight).__name__} of {weight.dtype}: this model is already quantized or cast. "
                    "Start from weights in bf16, fp16 or fp32."
                )
        if self.implementation == "library":
            _diffusers()
        cast, skipped = self._sort(model)
        if not cast:
            by = ", ".join(dict.fromkeys(skipped))
            why = f"all are skipped, by {by}; shorten skip" if skipped else "it has no layer with a weight matrix"
            raise ValueError(f"There is nothing to cast in this model: {why}.")
        for dtype in {dtype for weight in cast for dtype in (weight.dtype, self._computes_in(weight))}:
            _check_holds(_DTYPES[self.storage], dtype)
        for name, module in self._converted(model, cast).items():
            if any(parameter not in cast for parameter in module.parameters()):
                raise ValueError(
                    f"{name} shares a weight that is not cast, so it cannot compute in {self.compute} when the rest "
                    "does not. Convert the model and choose compute=own."
                )
        trained = [name for weight, name in cast.items() if weight.requires_grad]
        if training and trained:
            raise ValueError(f"{len(trained)} of the weights to cast are trained, {trained[0]} the first. {_TRAINED}")

    def apply(self, model: nn.Module) -> Callable[[], None]:
        self.check(model, training=False)
        if self.implementation == "library":
            return self._apply_diffusers(model)
        cast, owners, storage = self._sort(model)[0], _owners(model), _DTYPES[self.storage]
        weights = {
            weight: _Weight(weight, owners[weight], storage, None if self.compute == "own" else _DTYPES[self.compute])
            for weight in _in_order(model)
            if weight in cast
        }
        telling, undo = _telling(model, weights), []
        for module, (kind, first) in telling.items():
            module.__class__ = _telling_class(kind, first)
        ahead = _Ahead() if self.ahead else None
        for module, unit in _units(model, weights, self.granularity, ahead):
            undo.append(module.register_forward_pre_hook(unit.enter, prepend=True).remove)
            undo.append(module.register_forward_hook(unit.leave, always_call=True).remove)
        for module in self._converted(model, cast).values():
            convert = _Convert(_DTYPES[self.compute], next(module.parameters()).dtype)
            undo.append(module.register_forward_pre_hook(convert.enter, with_kwargs=True).remove)
            undo.append(module.register_forward_hook(convert.leave).remove)
        if ahead is not None:
            undo.append(model.register_forward_pre_hook(ahead.begin, prepend=True).remove)
            undo.append(model.register_forward_hook(ahead.end, always_call=True).remove)
        for resting in weights.values():
            resting.rest()

        def restore() -> None:
            if any(vars(type(module)).get("told_by") is not first for module, (_, first) in telling.items()):
                raise RuntimeError("Another optimization was applied to the model after casting. Undo it first.")
            for module, (kind, _) in telling.items():
                module.__class__ = kind
            telling.clear()
            for undo_one in undo:
                undo_one()
            for weight in weights.values():
                weight.restore()

        return restore

    def _apply_diffusers(self, model: nn.Module) -> Callable[[], None]:
        before = [(module, dict(vars(module))) for module in model.modules()]
        wide = {weight: weight.dtype for weight in model.parameters()}
        compute = self._computes_in(next(iter(self._sort(model)[0])))
        _diffusers().apply_layerwise_casting(model, _DTYPES[self.storage], compute, tuple(self._patterns(model)))

        def undo() -> None:
            for module, given in before:
                others = {name: value for name, value in vars(module).items() if name not in _HOOKED}
                module.__dict__ = others | {name: given[name] for name in _HOOKED & given.keys()}
            for weight, dtype in wide.items():
                _cast(weight, dtype)

        return undo

    def _computes_in(self, weight: Parameter) -> torch.dtype:
        return weight.dtype if self.compute == "own" else _DTYPES[self.compute]

    def _converted(self, model: nn.Module, cast: Mapping[Parameter, str]) -> dict[str, nn.Module]:
        """Modules that compute with cast weights, where that is in another dtype than the model's."""
        if all(weight.dtype is self._computes_in(weight) for weight in cast):
            return {}
        converted = {}
        for name, module in model.named_modules():
            some_or_all = any if _is_leaf(module) else all
            if (_is_leaf(module) or _weights_read_by(module)) and some_or_all(
                parameter in cast for parameter in module.parameters()
            ):
                converted[name] = module
        return converted

    def _sort(self, model: nn.Module) -> tuple[dict[Parameter, str], list[str]]:
        """Weights to cast with the names of their modules, and the reasons to leave others alone."""
        why_skipped = self._why_skipped(model)
        why = {name: why_skipped[name] for name, module in model.named_modules() if _is_leaf(module)}
        cast: dict[Parameter, str] = {}
        skipped: list[str] = []
        for weight, owners in _owners(model).items():
            leaf = next((name for name, _, _ in owners if name in why), None)
            if leaf is not None and weight.is_floating_point():
                # A shared weight must be up for all who use it, and only leaves that are cast see to that.
                reasons = [why.get(name, f"shared with {name or 'the model'}") for name, _, _ in owners]
                if reason := next(filter(None, reasons), ""):
                    skipped.append(reason)
                else:
                    cast[weight] = leaf
        return cast, skipped

    def _patterns(self, model: nn.Module) -> list[str]:
        patterns = _listed(self.skip)
        if "@declared" in patterns:
            patterns += getattr(model, "_skip_layerwise_casting_patterns", None) or ()
            fp32 = getattr(model, "_keep_in_fp32_modules", None) or ()
            patterns += [rf"(^|\.){re.escape(name)}(\.|$)" for name in fp32]
        return patterns

    def _why_skipped(self, model: nn.Module) -> dict[str, str]:
        """The pattern or class that each module, or one around it, meets; empty for none."""
        patterns, classes = self._patterns(model), {*_listed(self.skip_classes)}
        reasons: dict[str, str] = {}
        for path, module in model.named_modules():
            around = reasons.get(path.rpartition(".")[0], "")
            matching = (pattern for pattern in patterns if path and re.search(pattern, path))
            kinds = (kind.__name__ for kind in type(module).__mro__ if kind.__name__ in classes)
            reasons[path] = around or next(matching, "") or next(kinds, "")
        return reasons


def _diffusers() -> Any:
    try:
        return importlib.import_module("diffusers.hooks")
    except ImportError:
        raise ValueError("implementation=library needs diffusers, which is not installed: pip install it.") from None


_HOOKED = {"forward", "_diffusers_hook"}
_Owner = tuple[str, nn.Module, str]
"""A module's path, the module, and what it calls the weight."""


class _Weight:
    """One weight, and how many of the forward passes under way need it up."""

    def __init__(
        self, weight: Parameter, owners: list[_Owner], storage: torch.dtype, compute: torch.dtype | None
    ) -> None:
        self.weight, self.owners, self.storage, self.own = weight, owners, storage, weight.dtype
        self.compute = compute
        """None: in its own dtype, even if the model is converted."""
        self.users = 0
        self.ready: tuple[Tensor, int, Tensor] | None = None
        """Cast up ahead: what was at rest then, its version, and what became of it."""
        self.witness = f"_{owners[0][2]}_before_casting"
        """A buffer without elements, in the weight's own dtype: what rests in bf16 does not show `.to(bfloat16)`."""

    def rest(self) -> None:
        owner, witness = self.owners[0][1], torch.empty(0, dtype=self.own, device=self.weight.device)
        owner.register_buffer(self.witness, witness, persistent=False)
        _cast(self.weight, self.storage)

    def up(self) -> None:
        if self.users == 0:
            self.look_again()
            if torch.is_grad_enabled() and self.weight.requires_grad:
                raise ValueError(f"{self.owners[0][0]} has a trained weight, and is cast. {_TRAINED}")
            if not self._is_ready():
                _cast(self.weight, self.compute or self.own)
            if torch.is_grad_enabled():
                # Autograd may keep this, and must not find it cast down when the backward pass comes.
                self._put(Parameter(self.weight.detach(), requires_grad=False))
        self.users += 1

    def down(self) -> None:
        self.users -= 1
        if self.users == 0:
            self._put(self.weight)
            _cast(self.weight, self.storage)

    def make_ready(self) -> None:
        """Casts up what the next forward pass to need it will take; it rests until then."""
        if self.users == 0 and self.weight.dtype is self.storage:
            with torch.inference_mode(False):
                rests = self.weight.data
                self.ready = rests, self.weight._version, rests.to(self.compute or self.own)

    def _is_ready(self) -> bool:
        """Use the copy that was cast up ahead, unless the weight has changed since; return whether it was used."""
        if self.ready is None:
            return False
        (rests, version, wide), self.ready = self.ready, None
        now = self.weight
        same = now.data_ptr() == rests.data_ptr() and now._version == version and now.device == rests.device
        if same and wide.dtype is (self.compute or self.own):
            now.data = wide
            return True
        return False

    def look_again(self) -> None:
        """Since the last forward pass the model may have been converted, or have got other weights."""
        self.weight = self._current_parameter()
        wide = self._wide()
        if self.weight.dtype is not self.storage or wide is not self.own:
            if self.compute is not None and wide is not self.own:
                raise ValueError(
                    f"{self.owners[0][0]} was cast to compute in {self.compute}, and has been converted to "
                    f"{wide} since: undo the casting, convert, and cast again."
                )
            _check_holds(self.storage, wide)
            self.own = wide
            self._put(self.weight)
            _cast(self.weight, self.storage)

    def tells(self) -> torch.dtype:
        """Return the dtype that the model reports: the one of its weight while it computes."""
        weight = self._current_parameter().dtype
        return weight if self.users == 0 and weight is not self.storage else self.own

    def restore(self) -> None:
        self.weight = self._current_parameter()
        if self.weight.dtype is self.storage:
            _cast(self.weight, self._wide())
        delattr(self.owners[0][1], self.witness)

    def _wide(self) -> torch.dtype:
        """Return the dtype that the weight would have without the casting."""
        if self.weight.dtype is not self.storage:
            return self.weight.dtype
        return getattr(self.owners[0][1], self.witness).dtype  # type: ignore[no-any-return]

    def _current_parameter(self) -> Parameter:
        now = [module._parameters.get(name) for _, module, name in self.owners]
        first = now[0]
        if first is None or any(pointer is None or pointer.data_ptr() != first.data_ptr() for pointer in now):
            raise ValueError(
                f"{self.owners[0][0]} was cast, and its weight has been taken away or replaced in one of several "
                "places since: undo the casting before, and cast again after."
            )
        return first

    def _put(self, weight: Parameter) -> None:
        for _, module, name in self.owners:
            module._parameters[name] = weight


class _Unit:
    """Weights that go up before a module's forward pass and down after it, even if it ends in an exception."""

    def __init__(self, weights: list[_Weight], ahead: _Ahead | None) -> None:
        self.weights, self.ahead = weights, ahead
        self.risen: list[list[_Weight]] = []

    def enter(self, module: nn.Module, args: Any) -> None:
        if self.ahead is not None:
            self.ahead.arrive_at(self)
        self.risen.append([])
        for weight in self.weights:
            weight.up()
            self.risen[-1].append(weight)
        if self.ahead is not None:
            self.ahead.go_on_from(self)

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        for weight in self.risen.pop() if self.risen else ():
            weight.down()


class _Ahead:
    """Casts the next unit up while one computes, in the order of the model's previous forward pass.

    Memory that the stream takes was used by nothing launched later than when the stream begins to wait for the one
    that computes, and that one waits for it before it reads: so neither overwrites what the other still needs.
    """

    def __init__(self) -> None:
        self.order: list[_Unit] = []
        """Units in the order of the last pass."""
        self.so_far: list[_Unit] | None = None
        self.next: _Unit | None = None
        self.streams: dict[torch.device, torch.cuda.Stream] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Copies and files of a model have streams of their own."""
        return {**vars(self), "streams": {}}

    def begin(self, *_: Any) -> None:
        self.so_far = []

    def end(self, *_: Any) -> None:
        self.order, self.so_far = self.so_far or [], None
        self.arrive_at(None)

    def arrive_at(self, unit: _Unit | None) -> None:
        if self.next is None:
            return
        if unit is self.next:
            for device, stream in self.streams.items():
                torch.cuda.current_stream(device).wait_stream(stream)
        else:
            for weight in self.next.weights:
                weight.ready = None
        self.next = None

    def go_on_from(self, unit: _Unit) -> None:
        if self.so_far is None:
            # A backward pass that runs blocks again goes through them in another order.
            return
        self.so_far.append(unit)
        done = len(self.so_far)
        if done < len(self.order) and self.order[done - 1] is unit:
            self.next, here = self.order[done], unit.weights[0].weight.device
            with self._stream_of(here):
                for weight in self.next.weights:
                    if weight.weight.device == here:
                        weight.make_ready()

    @contextlib.contextmanager
    def _stream_of(self, device: torch.device) -> Iterator[None]:
        if device.type != "cuda":
            yield
            return
        if device not in self.streams:
            self.streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream = self.streams[device]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            yield


def _owners(model: nn.Module) -> dict[Parameter, list[_Owner]]:
    owners: dict[Parameter, list[_Owner]] = {}
    for path, module in model.named_modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                owners.setdefault(weight, []).append((path, module, name))
    return owners


def _cast(weight: Parameter, dtype: torch.dtype) -> None:
    with torch.inference_mode(False):
        weight.data = weight.data.to(dtype)


def _listed(text: str) -> list[str]:
    return re.findall(r"[^\s,]+", text)


def _is_leaf(module: nn.Module) -> bool:
    own = [parameter for parameter in module._parameters.values() if parameter is not None]
    has_more = any(True for child in module.children() for _ in child.parameters())
    return any(tensor.is_floating_point() and tensor.dim() >= 2 for tensor in own) and not has_more


def _in_order(module: nn.Module) -> list[Parameter]:
    """Return the parameters in the order of `Module.to`: children first, then the module's own."""
    below = [weight for child in module.children() for weight in _in_order(child)]
    return list(dict.fromkeys([*below, *(own for own in module._parameters.values() if own is not None)]))


def _units(
    model: nn.Module, weights: Mapping[Parameter, _Weight], granularity: str, ahead: _Ahead | None
) -> Iterator[tuple[nn.Module, _Unit]]:
    blocks = [model] if granularity == "model" else list(_blocks(model)) if granularity == "block" else []
    inside = {module for block in blocks for module in block.modules()}
    leaves = [module for module in model.modules() if _is_leaf(module) and module not in inside]
    readers = {module: read for module in model.modules() if (read := _weights_read_by(module))}
    for module, used in [*((module, _in_order(module)) for module in (*blocks, *leaves)), *readers.items()]:
        if unit := [weights[weight] for weight in used if weight in weights]:
            yield module, _Unit(unit, ahead)


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the entries of the outermost lists of modules."""
    for child in module.children():
        listed = isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.Sequential))
        if listed and not isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            yield child
        else:
            yield from _blocks(child)


def _weights_read_by(module: nn.Module) -> list[Parameter]:
    """Weights below a module that its own forward takes hold of, if only for their dtype, without calling their owner.

    They must be up as long as that forward runs. Where its code does not say whose `.weight` it takes, all below are.
    """
    forward = inspect.unwrap(module.forward)
    called = forward if inspect.isroutine(forward) else type(forward).__call__
    code = getattr(getattr(called, "__func__", called), "__code__", None)
    reading: list[Parameter] = []
    for *path, last in _accessed_weights(code) if code is not None and not _is_leaf(module) else ():
        owner: Any = module
        for name in path:
            owner = getattr(owner, "_modules", {}).get(name)
        if owner is None or (last == "weight" and not path and "weight" not in module._parameters):
            return _in_order(module)
        # Of all parameters at once, forwards ask the first one's dtype.
        reading += list(owner.parameters())[: 1 if last == "parameters" else None]
    return reading


@cache
def _accessed_weights(code: CodeType) -> list[list[str]]:
    """Return the attribute chains that end in `.weight` or `.parameters`, as in self.proj.weight."""
    chains: list[list[str]] = []
    names: list[str] = []
    for step in dis.get_instructions(code) if {"weight", "parameters"} & {*code.co_names} else ():
        names = [*names, step.argval] if step.opname in ("LOAD_ATTR", "LOAD_METHOD") else []
        if names and names[-1] in ("weight", "parameters"):
            chains.append(names)
    return chains


class _Convert:
    """Hooks that cast inputs and outputs of layers that compute in another dtype than the model."""

    def __init__(self, inside: torch.dtype, outside: torch.dtype) -> None:
        self.inside, self.outside = inside, outside

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return _all_to(self.inside, args), _all_to(self.inside, kwargs)

    def leave(self, module: nn.Module, args: Any, output: Any) -> Any:
        return _all_to(self.outside, output)


def _all_to(dtype: torch.dtype, values: Any) -> Any:
    return tree_map(lambda v: v.to(dtype) if isinstance(v, Tensor) and v.is_floating_point() else v, values)


def _telling(
    model: nn.Module, weights: Mapping[Parameter, _Weight]
) -> dict[nn.Module, tuple[type[nn.Module], _Weight]]:
    """Models of diffusers and transformers tell the dtype of their first weight, and inputs are converted to that."""
    telling: dict[nn.Module, tuple[type[nn.Module], _Weight]] = {}
    for module in model.modules():
        if isinstance(getattr(type(module), "dtype", None), property):
            cast = (weights[parameter] for parameter in module.parameters() if parameter in weights)
            first = next((weight for weight in cast if str(weight.own) == str(module.dtype)), None)
            telling |= {} if first is None else {module: (type(module), first)}
    return telling


def _telling_class(kind: Any, first: _Weight) -> type[nn.Module]:
    def reduce(self: nn.Module, protocol: Any) -> tuple[Any, ...]:
        make, args, *rest = kind.__reduce_ex__(self, protocol)
        # Pickles refer to classes by name, and this class has none: it is made again from its base.
        return _telling_again, (first, make, tuple(kind if arg is type(self) else arg for arg in args)), *rest

    body = {"dtype": property(lambda _: first.tells()), "told_by": first, "__reduce_ex__": reduce}
    attributes = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), {**body, **attributes})


def _telling_again(first: _Weight, make: Callable[..., nn.Module], args: tuple[Any, ...]) -> nn.Module:
    module = make(*args)
    module.__class__ = _telling_class(type(module), first)
    return module


def _check_holds(storage: torch.dtype, wide: torch.dtype) -> None:
    small, large = torch.finfo(storage), torch.finfo(wide)
    if large.bits <= small.bits:
        raise ValueError(
            f"Weights in {wide} save nothing when stored in {_dtype_name(storage)}: choose an fp8 storage."
        )
    if large.eps > small.eps or large.max < small.max or large.tiny > small.tiny:
        raise ValueError(f"{wide} cannot hold what {_dtype_name(storage)} can, so that casting would go on losing.")


def _dtype_name(dtype: torch.dtype) -> str:
    return next(name for name, dtype_ in _DTYPES.items() if dtype_ is dtype)
