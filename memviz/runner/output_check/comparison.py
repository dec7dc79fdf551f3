"""A model against the same model changed; a plan against its baseline, on a reduced model with real numbers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from memviz.errors import UsageError
from memviz.runner.measure.accelerator import find_accelerator
from memviz.runner.output_check.difference import (
    MARGIN,
    Arithmetic,
    Difference,
    Gradients,
    LayerCall,
    LayerComparer,
    LayerDifference,
    LossCurve,
    Named,
    Rounding,
    bounds_of,
    chained,
    coarser,
    coarsest,
    compare_gradients,
    difference,
    differences,
    expected_rounding,
    in_float64,
    in_order,
    loss_of_weights,
    recorded_layers,
    unit_roundoff,
    update_difference,
    work_of,
)
from memviz.runner.output_check.model_runs import (
    SAME_OPERATORS,
    Apply,
    ComparedStep,
    Inputs,
    Loss,
    MakeOptimizer,
    NotExercised,
    OperatorChange,
    Split,
    StepResult,
    adapter_name,
    adapter_weights,
    can_perturb,
    double_copy,
    dropout_as_factor,
    dropout_off,
    fits_in_float64,
    flatten,
    load_adapters,
    not_exercised,
    perturbed_weights,
    with_merged_adapters,
    with_weights,
)
from memviz.runner.output_check.verdict import LaterGap, Numerics, OutputDifference, signal_of
from memviz.runner.plan import Claim, Plan, fitted, pieces_of, weakest
from memviz.runner.step import Tell, optimizer_of
from memviz.runner.workloads import Workload
from memviz.runner.workloads.workload import FromConfiguration
from optimizations import Optimization, apply_all
from optimizations.gradient_accumulation import GradientAccumulation
from optimizations.lora import Lora

Types = dict[str, torch.dtype]


def stored_types(reference: nn.Module, changed: nn.Module) -> Types:
    """Weights that the changed model keeps in a coarser type than the reference, by the reference's name.

    A layer that something was wrapped around, as adapters are, is the wrapper's `base`.
    """
    changed_types = {_plain_name(name): parameter.dtype for name, parameter in changed.named_parameters()}
    return {
        name: changed_types[_plain_name(name)]
        for name, parameter in reference.named_parameters()
        if _plain_name(name) in changed_types
        and parameter.is_floating_point()
        and coarser(changed_types[_plain_name(name)], parameter.dtype)
    }


def _plain_name(name: str) -> str:
    return adapter_name(name).replace(".base.", ".")


@contextmanager
def computing_in(model: nn.Module) -> Iterator[set[torch.dtype]]:
    """Types of what modules are given inside; those that tensors only rest in do not count."""
    computing: set[torch.dtype] = set()

    def note(_module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        inputs = [tensor.dtype for tensor in flatten((args, kwargs)).values()]
        computing.update(tensor for tensor in inputs if tensor.is_floating_point and tensor.itemsize > 1)

    with ExitStack() as hooks:
        for module in model.modules():
            hooks.callback(module.register_forward_pre_hook(note, with_kwargs=True).remove)
        yield computing


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4)


def compare_outputs(
    build: Callable[[], nn.Module],
    inputs: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    apply: Apply,
    *,
    loss: Loss | None = None,
    training: bool,
    claim: Claim,
    optimizer: MakeOptimizer = adamw,
    steps: int = 4,
    withheld: Collection[str] = (),
    split: Split | None = None,
    changes: Sequence[OperatorChange] = (),
    trained_beside: Callable[[nn.Module], nn.Module] | None = None,
) -> Numerics:
    """`build` gives a model with its weights; `inputs` are keyword arguments of one call, or of each micro-batch.

    `withheld` are outputs that the changed model omits by declaration: the others are compared.
    `split` is how a changed step takes its batch in pieces, where it does.
    `changes` are those that `apply` consists of, for each to be looked at by itself.
    `trained_beside` gives a copy of the model with the adapters that `apply` adds, as the reference: both are compared
    once these have been trained for `steps` steps, since new adapters change nothing.
    """
    batches: Inputs = [inputs] if isinstance(inputs, Mapping) else list(inputs)
    if not batches:
        raise UsageError("There are no inputs for the model. Give the keyword arguments of at least one call.")
    reference = build().train(training)
    step = ComparedStep([dict(batch) for batch in batches], training, loss or mean_of_output)
    changes = changes or [OperatorChange("", apply, split, lossy=claim == "lossy", in_steps=claim == "training")]
    idle = list(not_exercised(reference, step, changes, optimizer))
    comparison = _Comparison(reference, step, apply, claim, frozenset(withheld), split)
    if trained_beside is not None:
        comparison = replace(comparison, reference=trained_beside(reference), origin=reference)
        before = adapter_weights(comparison.reference)
        comparison.step.losses(comparison.reference, steps, optimizer)
        comparison.adapters = adapter_weights(comparison.reference)
        still = all(torch.equal(weight, before[name]) for name, weight in comparison.adapters.items())
        idle += [NotExercised("adapters", f"{steps} training steps did not change them")] if still else []
    numerics = comparison.run(optimizer, steps)
    if len(idle) >= len(changes) and not numerics.same:
        idle = []
    if numerics.losses is not None and not numerics.losses.updates:
        idle += [NotExercised(change.title, change.reason) for change in changes if change.in_steps]
    return replace(numerics, changes=len(changes), not_exercised=tuple(dict.fromkeys(idle)))


def mean_of_output(output: Any) -> Tensor:
    """The model's own loss, if it returns one, or the mean of its largest output."""
    tensors = flatten(output)
    if "loss" in tensors:
        return tensors["loss"]
    return max(tensors.values(), key=Tensor.numel).mean()


@dataclass
class _Comparison:
    reference: nn.Module
    step: ComparedStep
    apply: Apply
    claim: Claim
    withheld: frozenset[str] = frozenset()
    split: Split | None = None
    arithmetic: Arithmetic = field(default_factory=Arithmetic)
    origin: nn.Module | None = None
    """The model to change, where it is not the reference itself."""
    adapters: dict[str, Tensor] = field(default_factory=dict)
    """Trained adapter weights that both models load; empty where there are none."""
    rests: Types = field(default_factory=dict)
    """Dtypes in which the changed model stores some weights, and to which the reference's are rounded."""
    notes: list[str] = field(default_factory=list)

    def run(self, make: MakeOptimizer, steps: int) -> Numerics:
        numerics = self._compared(make, steps)
        if numerics.stored is None:
            return numerics
        against_stored = self._beside_stored().run(make, 0)
        notes = tuple(dict.fromkeys((*numerics.notes, *against_stored.notes)))
        return replace(numerics, beside_stored=against_stored, notes=notes)

    def _beside_stored(self) -> _Comparison:
        with computing_in(self.reference) as usual:
            self.step.run(self.reference)
        with self._changed() as changed, computing_in(changed) as computes:
            types = stored_types(self.reference, changed)
            self._changed_step.run(changed)
        # Modules with a compute dtype of their own cannot run in another, not even float64.
        arithmetic = Arithmetic(frozenset(computes), None if computes - usual else double_copy)
        rounded = deepcopy(self.reference)
        for name, parameter in rounded.named_parameters():
            if name in types:
                parameter.data = parameter.data.to(types[name]).to(parameter.dtype)
        return replace(
            self,
            reference=rounded,
            origin=self.origin or self.reference,
            claim="rounding",
            arithmetic=arithmetic,
            notes=[],
            rests=types,
        )

    def _compared(self, make: MakeOptimizer, steps: int) -> Numerics:
        ran = self.step.run(self.reference)
        if not ran.outputs:
            raise UsageError("The model returns no tensor, so outputs cannot be compared.")
        if missing := ", ".join(name for name in ran.outputs if name in self.withheld):
            self.notes.append(f"The optimized model does not return {missing}, so it was not compared.")
        with self._comparable(ran) as quiet:
            baseline = self._baseline_of(self.step.run(self.reference) if quiet else ran, make, steps)
            return self._compare_with(baseline, make)

    @contextmanager
    def _comparable(self, ran: StepResult) -> Iterator[bool]:
        """Yield True if dropout is replaced by a factor, since the change may draw other random numbers and be right.

        Bit for bit includes the random numbers; where the changed model draws the same, they are compared too.
        """
        draws = ran.draws and self.claim != "bitwise"
        if draws:
            with self._changed() as changed:
                draws = not self._changed_step.run(changed).draws_like(ran)
        if not draws:
            yield False
            return
        with dropout_as_factor(), ExitStack() as off:
            how = "as a factor of 1 - p"
            if self.step.run(self.reference).draws:  # by a function of its own
                how = "off"
                off.enter_context(dropout_off(self.reference))
            self.notes.append(f"Compared with dropout {how}: optimizations may draw other random numbers.")
            yield True

    @contextmanager
    def _changed(self) -> Iterator[nn.Module]:
        changed = deepcopy(self.origin or self.reference)
        undo = self.apply(changed)
        load_adapters(changed, self.adapters)
        try:
            yield changed
        finally:
            undo()

    def _baseline_of(self, ran: StepResult, make: MakeOptimizer, steps: int) -> _Baseline:
        """Before anything is changed, since a change may reach beyond its model."""
        again = self.step.run(self.reference)
        losses = None
        if self.step.training and steps:
            first = _trained(deepcopy(self.reference), self.step, steps, make)
            # What two runs agree on to the bit needs no second curve.
            pairs = [(ran.outputs, again.outputs), (ran.gradients, again.gradients)]
            same = all(torch.equal(one, other[name]) for ours, other in pairs for name, one in ours.items())
            losses = first, first if same else _trained(deepcopy(self.reference), self.step, steps, make)
        # Where outputs are claimed to the bit, gradients may still be added up in another type.
        rounds = self.claim in ("rounding", "training") or (self.claim == "bitwise" and self.step.training)
        exact = self._in_float64(self.reference) if rounds else None
        weights = perturbed_weights(self.reference, self.rests) if fits_in_float64(self.reference) else {}
        with with_weights(self.reference, weights):
            return _Baseline(ran, again, exact, losses, weights, self.step.run(self.reference))

    @property
    def _changed_step(self) -> ComparedStep:
        return replace(self.step, split=self.split)

    def _in_float64(self, model: nn.Module, step: ComparedStep | None = None) -> StepResult | None:
        if self.arithmetic.in_float64 is None or not fits_in_float64(model):
            return None
        try:
            with self.arithmetic.in_float64(model) as exact:
                return (step or self.step).run(exact, dtype=torch.float64)
        except Exception as error:  # not every model can compute in float64, and errors differ
            self.notes.append(f"float64 could not be used for the whole model: {type(error).__name__}: {error}")
            return None

    def _compare_with(self, baseline: _Baseline, make: MakeOptimizer) -> Numerics:
        bounds = bounds_of(self.reference, self._tensors(), baseline.ran.outputs, self.step.device, self.arithmetic)
        with self._changed() as changed:
            result = self._changed_step.run(changed)
            outputs = differences(self._common_outputs(baseline.ran), self._common_outputs(result))
            beyond = baseline.exact is not None and _exceeds_rounding(baseline.ran, result, outputs, bounds)
            exact = self._in_float64(changed, self._changed_step) if beyond else None
            types = stored_types(self.reference, changed).values() if self.claim == "lossy" else ()
            stored = max((kind for kind in types if kind.is_floating_point), key=unit_roundoff, default=None)
            gradients = self._gradients(changed, baseline, result, exact)
            later = tuple(self._later_gaps(changed, baseline))
            losses = self._losses(changed, baseline, result, make)
        signal = signal_of(self._tensors(), baseline.ran.outputs.values())
        needless = all(gaps.bitwise for gaps in outputs.values()) and not (signal and signal.words)
        return Numerics(
            claim=self.claim,
            outputs=tuple(_output(name, gaps, baseline, exact, bounds) for name, gaps in outputs.items()),
            layers=() if needless else self._layers(stored),
            gradients=gradients,
            losses=losses,
            signal=signal,
            adapters=bool(self.adapters),
            stored=None if stored is None else str(stored).removeprefix("torch."),
            stored_loss=None if stored is None else loss_of_weights(self.reference, stored),
            notes=tuple(dict.fromkeys(self.notes)),
            later=later,
        )

    def _later_gaps(self, changed: nn.Module, baseline: _Baseline) -> Iterator[LaterGap]:
        """On the very model that ran before, since that is where something may have been kept."""
        if not baseline.weights or not can_perturb(changed, baseline.weights, self.rests):
            return
        with with_weights(changed, baseline.weights):
            result = self._changed_step.run(changed)
        for name, output_gap in differences(self._common_outputs(baseline.later), self._common_outputs(result)).items():
            yield LaterGap("output", name, output_gap.relative_l2)
        gradients = self._gradients(
            changed, replace(baseline, ran=baseline.later, again=baseline.later, exact=None), result, None
        )
        if gradients is not None:
            for row in gradients.parameters:
                gap = row.difference.l2 / gradients.size if gradients.size else row.difference.relative_l2
                yield LaterGap("gradient", row.name, gap)

    def _common_outputs(self, ran: StepResult) -> dict[str, Tensor]:
        """Return the outputs that both models give."""
        return {name: tensor for name, tensor in ran.outputs.items() if name not in self.withheld}

    def _tensors(self) -> list[Tensor]:
        return list(flatten(self.step.inputs).values())

    def _layers(self, stored: torch.dtype | None) -> tuple[LayerDifference, ...]:
        """On a model changed anew: the reference's layers are recorded while nothing is changed."""
        forward = replace(self.step, training=False)
        alone = LayerComparer(
            self.step.device, exactly=self.claim in ("rounding", "training"), arithmetic=self.arithmetic
        )
        with recorded_layers(self.reference, self.step.device) as calls:
            forward.run(self.reference)
        compared: list[tuple[LayerCall, LayerDifference, Tensor | None]] = []
        with self._changed() as changed:
            drift = chained(changed, calls, lambda: forward.run(changed))
            submodules = dict(changed.named_modules())
            for call in in_order(calls):
                if call.path not in submodules:
                    self.notes.append(f"{call.path} is not in the optimized model.")
                elif both := alone.compare(self.reference.get_submodule(call.path), submodules[call.path], call):
                    compared.append((call, *both))
        layers = []
        for call, row, ours in compared:
            reference = self.reference.get_submodule(call.path)
            settled = alone.settled(reference, call, row, ours)
            stored_loss = None if stored is None else loss_of_weights(reference, stored)
            layers.append(replace(settled, chained=drift.get(call.path), stored_loss=stored_loss))
        self.notes += alone.notes
        return tuple(layers)

    def _gradients(
        self, changed: nn.Module, baseline: _Baseline, result: StepResult, exact: StepResult | None
    ) -> Gradients | None:
        if not self.step.training:
            return None
        if _has_no_gradients(changed, result):
            self.notes.append("The optimized model keeps its gradients elsewhere; they were not compared.")
            return None
        both = (baseline.exact.gradients, exact.gradients) if baseline.exact is not None and exact is not None else None
        # Backward multiplies by every weight once more, and a weight's gradient is a sum over all rows.
        reductions, longest = work_of(self.reference, self._tensors())
        rows = max(
            (tensor.numel() // (tensor.shape[-1] if tensor.dim() > 2 else 1) for tensor in self._tensors()), default=1
        )
        dtype = coarsest({*self.arithmetic.computes, *(gradient.dtype for gradient in baseline.ran.gradients.values())})
        bounds = expected_rounding(dtype, (2 * reductions, max(longest, rows)), self.step.device)
        return compare_gradients(
            baseline.ran.gradients, result.gradients, baseline.again.gradients, bounds=bounds, exact=both
        )

    def _losses(
        self, changed: nn.Module, baseline: _Baseline, result: StepResult, make: MakeOptimizer
    ) -> LossCurve | None:
        """Last of all: it changes the weights."""
        if baseline.losses is None or _has_no_gradients(changed, result):
            return None
        first, again = baseline.losses
        curve = _trained(changed, self._changed_step, len(first.losses), make)
        updates = update_difference(first.updates, curve.updates)
        trains = "adapters" if self.adapters else ""
        return LossCurve(first.losses, again.losses, curve.losses, updates, trains)


@dataclass(frozen=True)
class _Curve:
    losses: tuple[float, ...]
    updates: Named
    """Total change of each weight over all steps."""


def _trained(model: nn.Module, step: ComparedStep, steps: int, make: MakeOptimizer) -> _Curve:
    trained = {adapter_name(name): weight for name, weight in model.named_parameters() if weight.requires_grad}
    before = {name: weight.detach().clone() for name, weight in trained.items()}
    losses = tuple(step.losses(model, steps, make))
    return _Curve(losses, {name: (weight.detach() - before[name]) for name, weight in trained.items()})


@dataclass(frozen=True)
class _Baseline:
    ran: StepResult
    again: StepResult
    exact: StepResult | None
    """In float64."""
    losses: tuple[_Curve, _Curve] | None
    weights: dict[str, Tensor]
    """Moved, as after a step of an optimizer; none where they would take too much."""
    later: StepResult
    """With those."""


def _exceeds_rounding(ran: StepResult, result: StepResult, outputs: Mapping[str, Difference], bounds: Rounding) -> bool:
    """Return True if any difference exceeds what float32 rounding explains."""
    gaps = [gap.relative_l2 for gap in outputs.values()]
    for name, gradient in ran.gradients.items():
        ours = result.gradients.get(name)
        if ours is not None and ours.shape == gradient.shape:
            exact = gradient.to(torch.float64)
            size, distance = float(exact.norm()), float((ours.to(torch.float64) - exact).norm())
            gaps.append(distance / size if size else distance)
    return max(gaps, default=0.0) > MARGIN * bounds.fine


def _has_no_gradients(changed: nn.Module, result: StepResult) -> bool:
    """Return True if the gradients are not in the parameters."""
    parameters = {adapter_name(name): parameter for name, parameter in changed.named_parameters()}
    trained = any(parameter.requires_grad for parameter in parameters.values())
    return trained and not any(name in parameters for name in result.gradients)


def _output(
    name: str, gap: Difference, baseline: _Baseline, exact: StepResult | None, bounds: Rounding
) -> OutputDifference:
    reference = baseline.ran.outputs[name]
    if baseline.exact is not None and name in baseline.exact.outputs:
        own = baseline.exact.outputs[name]
        actual = exact.outputs.get(name) if exact is not None else None
        bounds = in_float64(bounds, reference, own, actual)
    return OutputDifference(name, gap, difference(reference, baseline.again.outputs[name]), bounds)


_MOST_PIECES = 3
"""Most pieces of a batch on the reduced model."""


def check_outputs(plan: Plan, tell: Tell, mode: str, *, pinned: int | None = None) -> dict[str, Any] | None:
    """None where nothing is changed. Measured runs compare on the GPU, where their kernels are.

    `pinned` is what the run itself held in host memory, where that was counted.
    """
    if not plan.optimizations:
        return None
    tell("comparing the outputs on a reduced model")
    # Twins are too small to gain by threads, and threads that wait for each other cost whole seconds.
    torch.set_num_threads(1)
    return _Check(plan, place_of(mode), pinned).numerics()


class _Check:
    """One plan, on its reduced model."""

    def __init__(self, plan: Plan, place: torch.device, pinned: int | None) -> None:
        self.plan, self.place, self.pinned = plan, place, pinned
        self.twin = _reduced_model_of(plan)
        self.applied: list[Optimization] = []
        self.changes = list(self._changes())

    def build(self) -> nn.Module:
        torch.manual_seed(self.twin.seed)
        return self.twin.build().to(self.place)

    def numerics(self) -> dict[str, Any]:
        twin, optimizer = self.twin, self.plan.request.optimizer
        lora = next((change for change in self.applied if isinstance(change, Lora)), None)
        # Adapters are another training from the start, and are held against the same training.
        claims = ["rounding" if change is lora else change.claim for change in self.applied]
        numerics = compare_outputs(
            self.build,
            [twin.inputs(self.place, number) for number in range(twin.micro_batches)],
            _applying(self.applied),
            loss=twin.loss,
            training=twin.training,
            claim=weakest(claims),
            optimizer=lambda weights: optimizer_of("adamw" if optimizer == "none" else optimizer, weights),
            withheld={name for change in self.applied for name in getattr(change, "withholds", ())},
            split=_split(self.applied),
            changes=self.changes,
            trained_beside=None if lora is None else lambda model: with_merged_adapters(model, lora),
        )
        sees_less = any(getattr(change, "sees_less", False) for change in self.applied)
        numerics = replace(numerics, sees_less=sees_less)
        weights = ", random weights" if isinstance(twin, FromConfiguration) else ""
        return {"on": f"{twin.describe()}{weights}, on {self.place.type}", **numerics.as_json()}

    def _changes(self) -> Iterator[OperatorChange]:
        """Yield each change applied after all before it. One that the reduced model refuses is reported as left out."""
        model = self.build()
        pieces = pieces_of(self.plan.optimizations)
        passes = self.twin.micro_batches * (1 if pieces is None else _fewer_pieces(pieces).pieces)
        for change in self.plan.optimizations:
            reduced = fitted(_with_reduced_knobs(change, self.plan.workload, self.twin), {}, passes)
            refusal = self._refusal(change, reduced, model)
            if not refusal:
                self.applied.append(reduced)
            reason = refusal or getattr(reduced, "idle_where", "") or SAME_OPERATORS
            lossy = reduced.claim == "lossy" and not isinstance(reduced, Lora)
            in_steps = reduced.claim == "training"
            now = list(self.applied)
            if change.name != "allocator_settings" or len(self.plan.optimizations) == 1:
                yield OperatorChange(change.title, _applying(now), _split(now), reason, lossy, in_steps)

    def _refusal(self, change: Optimization, reduced: Optimization, model: nn.Module) -> str:
        """Why a change is not compared; empty where it is."""
        if change.environment:
            return "it does not change the computation"
        if self.pinned == 0 and getattr(change, "pins_host_memory", False):
            return "the run moved nothing to host memory"
        with ExitStack() as undo:
            copied = deepcopy(model)
            undo.callback(apply_all(copied, self.applied))
            try:
                reduced.check(copied, training=self.twin.training)
                reduced.apply(copied)()
            except ValueError as error:
                return f"it cannot be applied to the reduced model: {error}".rstrip(".")
        return ""


def _applying(changes: Sequence[Optimization]) -> Callable[[nn.Module], Callable[[], None]]:
    return lambda model: apply_all(model, changes)


def _split(changes: Sequence[Optimization]) -> Split | None:
    pieces = pieces_of(changes)
    return None if pieces is None else pieces.split


def _reduced_model_of(plan: Plan) -> Workload:
    """With a batch that its pieces divide as evenly as those of the run do."""
    twin, pieces, batch = plan.workload.small(), pieces_of(plan.optimizations), getattr(plan.workload, "batch", None)
    if pieces is None or not isinstance(batch, int):
        return twin
    return replace(twin, batch=_fewer_pieces(pieces).pieces + bool(batch % pieces.pieces))  # type: ignore[call-arg]


def _fewer_pieces(pieces: GradientAccumulation) -> GradientAccumulation:
    return replace(pieces, pieces=min(pieces.pieces, _MOST_PIECES))


def _with_reduced_knobs(change: Optimization, own: Workload, twin: Workload) -> Optimization:
    """With knobs for the reduced model: their `reduced` value, or in proportion to what they are counted in."""
    if isinstance(change, GradientAccumulation):
        return _fewer_pieces(change)
    knobs = {knob.name: knob.metadata for knob in fields(change)}  # type: ignore[arg-type]
    values = {name: metadata["reduced"] for name, metadata in knobs.items() if "reduced" in metadata}
    for name, metadata in knobs.items():
        if "counted_in" in metadata and isinstance(own, FromConfiguration):
            total, reduced = _counts(own, twin, metadata["counted_in"])
            values[name] = max(in_proportion(getattr(change, name), total, reduced), metadata["least"])
    return replace(change, **values) if values else change  # type: ignore[type-var]


def in_proportion(value: int, total: int, reduced: int) -> int:
    """Scale `value` from `whole` to `reduced`. A proper part of the one stays a proper part of the other."""
    if value >= total:
        return max(reduced, value * reduced // total)
    return max(min(round(value * reduced / total), reduced - 1), 1)


def _counts(own: Workload, twin: Workload, unit: str) -> tuple[int, int]:
    """Tokens of a batch ("rows") or of a sequence ("sequence"), in the largest input of both."""

    def count(tensor: Tensor) -> int:
        if unit == "sequence":
            return tensor.shape[1] if tensor.dim() > 1 else 1
        # Channels come last; of latents count the elements, which grow with the tokens.
        return tensor.numel() // (tensor.shape[-1] if tensor.dim() == 3 and tensor.is_floating_point() else 1)

    meta = torch.device("meta")
    total, reduced = ({name: count(x) for name, x in flatten(one.inputs(meta)).items()} for one in (own, twin))
    name = max(total, key=lambda one: total[one])
    return max(total[name], 1), max(reduced.get(name, 1), 1)


def place_of(mode: str) -> torch.device:
    """The device that the run was measured on, whichever kind that is: its kernels are the question."""
    return torch.device(find_accelerator().kind if mode == "measured" else "cpu")
