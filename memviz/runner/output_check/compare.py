"""A model as it is against the same model changed: outputs, layers, gradients and losses on real numbers.

The reference runs twice, which gives the noise, and in float64 where that fits, which gives the rounding. Weights,
inputs and random numbers are the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from memviz.errors import UsageError
from memviz.runner.output_check.difference import Difference, difference, differences
from memviz.runner.output_check.dropout import as_a_factor
from memviz.runner.output_check.flatten import flatten
from memviz.runner.output_check.gradients import Gradients as GradientsFound
from memviz.runner.output_check.gradients import LossCurve, compare_gradients
from memviz.runner.output_check.layers import (
    Alone,
    Call,
    Compared,
    How,
    LayerDifference,
    Recorder,
    Rounding,
    bounds_of,
    chained,
    in_float64,
    in_order,
)
from memviz.runner.output_check.moved import holding, moved_weights, takes
from memviz.runner.output_check.numerics import Claim, LaterGap, Numerics, OutputDifference
from memviz.runner.output_check.precision import doubled_copy, fits
from memviz.runner.output_check.rounding import (
    MARGIN,
    coarsest,
    expected,
    loss_of_weights,
    work_of,
)
from memviz.runner.output_check.runs import Gradients, Inputs, Loss, Ran, Step, dropout_off
from memviz.runner.output_check.signal import signal_of
from memviz.runner.output_check.stored import as_stored, coarsest_stored, computing_in, stored_types

Undo = Callable[[], None]
Apply = Callable[[nn.Module], Undo]
Progress = Callable[[str], None]
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


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
    progress: Progress | None = None,
    gradients: Gradients | None = None,
    optimizer: MakeOptimizer = adamw,
    steps: int = 4,
    seed: int = 0,
) -> Numerics:
    """`build` gives a model with its weights; `inputs` are keyword arguments of one call, or of each micro-batch.

    `gradients` says where the changed model keeps them, by the parameters' names, if not in the parameters.
    """
    batches: Inputs = [inputs] if isinstance(inputs, Mapping) else list(inputs)
    if not batches:
        raise UsageError("There are no inputs to run the model on; give the keyword arguments of at least one call.")
    reference = build().train(training)
    step = Step([dict(each) for each in batches], training, loss or mean_of_output, seed)
    return _Comparison(reference, step, apply, claim, gradients, progress or _silent).run(optimizer, steps)


def mean_of_output(output: Any) -> Tensor:
    """The model's own loss, if it returns one, or the mean of its largest output."""
    tensors = flatten(output)
    if "loss" in tensors:
        return tensors["loss"]
    return max(tensors.values(), key=Tensor.numel).mean()


def _silent(_phase: str) -> None:
    pass


@dataclass
class _Comparison:
    reference: nn.Module
    step: Step
    apply: Apply
    claim: Claim
    gradients: Gradients | None
    progress: Progress
    how: How = field(default_factory=How)
    origin: nn.Module | None = None
    """What is changed, where it is not held against itself."""
    notes: list[str] = field(default_factory=list)

    def run(self, make: MakeOptimizer, steps: int) -> Numerics:
        found = self._compared(make, steps)
        if found.stored is None:
            return found
        beside = self._beside_stored().run(make, 0)
        notes = tuple(dict.fromkeys((*found.notes, *beside.notes)))
        return replace(found, beside_stored=beside, notes=notes)

    def _beside_stored(self) -> _Comparison:
        self.progress("weights as they are stored")
        with computing_in(self.reference) as usual:
            self.step.run(self.reference)
        with self._changed() as changed, computing_in(changed) as computes:
            types = stored_types(self.reference, changed)
            self.step.run(changed, self.gradients)
        # What is told to compute in a type of its own computes in no other, float64 neither.
        how = How(frozenset(computes), None if computes - usual else doubled_copy)
        rounded = as_stored(self.reference, types)
        return replace(self, reference=rounded, origin=self.reference, claim="rounding", how=how, notes=[])

    def _compared(self, make: MakeOptimizer, steps: int) -> Numerics:
        self.progress("reference")
        ran = self.step.run(self.reference)
        if not ran.outputs:
            raise UsageError("The model returns no tensor, so there is nothing to compare.")
        with self._comparable(ran) as quiet:
            known = self._known(self.step.run(self.reference) if quiet else ran, make, steps)
            return self._against(known, make)

    @contextmanager
    def _comparable(self, ran: Ran) -> Iterator[bool]:
        """Whether dropout is made a factor, since the change may draw other random numbers and be right.

        Bit for bit includes the random numbers; where the changed model draws the same, they are compared too.
        """
        if not ran.draws or self.claim == "bitwise" or self._draws_like(ran):
            yield False
            return
        with as_a_factor(), ExitStack() as off:
            how = "as a factor of 1 - p"
            if self.step.run(self.reference).draws:  # by a function of its own
                how = "off"
                off.enter_context(dropout_off(self.reference))
            self.notes.append(f"Compared with dropout {how}: a change may draw other random numbers and be right.")
            yield True

    def _draws_like(self, ran: Ran) -> bool:
        with self._changed() as changed:
            return self.step.run(changed, self.gradients).draws_like(ran)

    @contextmanager
    def _changed(self) -> Iterator[nn.Module]:
        changed = deepcopy(self.origin or self.reference)
        undo = self.apply(changed)
        try:
            yield changed
        finally:
            undo()

    def _known(self, ran: Ran, make: MakeOptimizer, steps: int) -> _Known:
        """Before anything is changed, since a change may reach beyond its model."""
        again = self.step.run(self.reference)
        losses = None
        if self.step.training and steps:
            self.progress("losses of the reference")
            first = self._curve(make, steps)
            # What two runs agree on to the bit needs no second curve.
            losses = (first, first if _same(ran, again) else self._curve(make, steps))
        exact = self._in_float64(self.reference) if self.claim == "rounding" else None
        weights = moved_weights(self.reference) if fits(self.reference) else {}
        with holding(self.reference, weights):
            return _Known(ran, again, exact, losses, weights, self.step.run(self.reference))

    def _curve(self, make: MakeOptimizer, steps: int) -> tuple[float, ...]:
        return tuple(self.step.losses(deepcopy(self.reference), steps, make, None))

    def _in_float64(self, model: nn.Module) -> Ran | None:
        if self.how.in_float64 is None or not fits(model) or self.gradients is not None:
            return None
        self.progress("float64")
        try:
            with self.how.in_float64(model) as exact:
                return self.step.run(exact, dtype=torch.float64)
        except Exception as error:  # not every model can compute in float64, and each fails in its own way
            self.notes.append(f"float64 could not be used for the whole model: {type(error).__name__}: {error}")
            return None

    def _against(self, known: _Known, make: MakeOptimizer) -> Numerics:
        self.progress("changed model")
        bounds = bounds_of(self.reference, self._tensors(), known.ran.outputs, self.step.device, self.how)
        with self._changed() as changed:
            ours = self.step.run(changed, self.gradients)
            found = differences(known.ran.outputs, ours.outputs)
            beyond = known.exact is not None and _beyond(known.ran, ours, found, bounds)
            exact = self._in_float64(changed) if beyond else None
            stored = coarsest_stored(stored_types(self.reference, changed)) if self.claim == "lossy" else None
            gradients = self._gradients(changed, known, ours, exact)
            later = tuple(self._later(changed, known))
            losses = self._losses(changed, known, ours, make)
        signal = signal_of(self._tensors(), known.ran.outputs.values())
        needless = all(each.bitwise for each in found.values()) and not (signal and signal.words)
        return Numerics(
            claim=self.claim,
            outputs=tuple(_output(name, each, known, exact, bounds) for name, each in found.items()),
            layers=() if needless else self._layers(stored),
            gradients=gradients,
            losses=losses,
            signal=signal,
            stored=None if stored is None else str(stored).removeprefix("torch."),
            stored_loss=None if stored is None else loss_of_weights(self.reference, stored),
            notes=tuple(dict.fromkeys(self.notes)),
            later=later,
        )

    def _later(self, changed: nn.Module, known: _Known) -> Iterator[LaterGap]:
        """On the very model that ran before, since that is where something may have been kept."""
        if not known.weights or not takes(changed, known.weights):
            return
        with holding(changed, known.weights):
            ours = self.step.run(changed, self.gradients)
        for name, each in differences(known.later.outputs, ours.outputs).items():
            yield LaterGap("output", name, each.relative_l2)
        found = self._gradients(changed, replace(known, ran=known.later, again=known.later, exact=None), ours, None)
        if found is not None:
            for row in found.parameters:
                gap = row.difference.l2 / found.size if found.size else row.difference.relative_l2
                yield LaterGap("gradient", row.name, gap)

    def _tensors(self) -> list[Tensor]:
        return list(flatten(self.step.inputs).values())

    def _layers(self, stored: torch.dtype | None) -> tuple[LayerDifference, ...]:
        """On a model changed anew: the reference's layers are recorded while nothing is changed."""
        self.progress("layers")
        recorder = Recorder(self.reference, self.step.device)
        forward = replace(self.step, training=False)
        alone = Alone(self.step.device, exactly=self.claim == "rounding", how=self.how)
        with recorder.recording():
            forward.run(self.reference)
        with self._changed() as changed:
            drift = chained(changed, recorder.calls, lambda: forward.run(changed))
            found = [(call, self._alone(changed, call, alone)) for call in in_order(recorder.calls)]
        rows = [self._row(call, each, alone, stored) for call, each in found if each is not None]
        self.notes += alone.notes
        return tuple(replace(each, chained=drift.get(each.path)) for each in rows)

    def _alone(self, changed: nn.Module, call: Call, alone: Alone) -> Compared | None:
        ours = dict(changed.named_modules()).get(call.path)
        if ours is None:
            self.notes.append(f"{call.path} is not in the changed model.")
            return None
        return alone.compare(self.reference.get_submodule(call.path), ours, call)

    def _row(self, call: Call, compared: Compared, alone: Alone, stored: torch.dtype | None) -> LayerDifference:
        reference = self.reference.get_submodule(call.path)
        compared = alone.settled(reference, call, compared)
        return LayerDifference(
            path=call.path,
            block=call.block,
            name=compared.name,
            alone=compared.difference,
            chained=None,
            rounding=compared.rounding,
            stored_loss=None if stored is None else loss_of_weights(reference, stored),
        )

    def _gradients(self, changed: nn.Module, known: _Known, ours: Ran, exact: Ran | None) -> GradientsFound | None:
        if not self.step.training:
            return None
        if _elsewhere(changed, ours):
            self.notes.append("The changed model keeps its gradients elsewhere; they were not compared.")
            return None
        both = (known.exact.gradients, exact.gradients) if known.exact is not None and exact is not None else None
        # Backward multiplies by every weight once more, and a weight's gradient is a sum over all rows.
        reductions, longest = work_of(self.reference, self._tensors())
        rows = max((each.numel() // (each.shape[-1] if each.dim() > 2 else 1) for each in self._tensors()), default=1)
        work = (2 * reductions, max(longest, rows))
        dtype = coarsest({*self.how.computes, *(each.dtype for each in known.ran.gradients.values())})
        on_cuda = self.step.device.type == "cuda"
        bounds = Rounding(work[0], expected(dtype, work, on_cuda=on_cuda), expected(torch.float32, work), None, None)
        return compare_gradients(known.ran.gradients, ours.gradients, known.again.gradients, bounds=bounds, exact=both)

    def _losses(self, changed: nn.Module, known: _Known, ours: Ran, make: MakeOptimizer) -> LossCurve | None:
        """Last of all: it changes the weights."""
        if known.losses is None or _elsewhere(changed, ours):
            return None
        self.progress("losses of the changed model")
        mine = self.step.losses(changed, len(known.losses[0]), make, self.gradients)
        return LossCurve(*known.losses, tuple(mine))


@dataclass(frozen=True)
class _Known:
    ran: Ran
    again: Ran
    exact: Ran | None
    """In float64."""
    losses: tuple[tuple[float, ...], tuple[float, ...]] | None
    weights: dict[str, Tensor]
    """Moved, as after a step of an optimizer; none where they would take too much."""
    later: Ran
    """With those."""


def _same(one: Ran, other: Ran) -> bool:
    pairs = [(getattr(one, kind), getattr(other, kind)) for kind in ("outputs", "gradients")]
    return all(torch.equal(tensor, theirs[name]) for ours, theirs in pairs for name, tensor in ours.items())


def _apart(reference: Tensor, ours: Tensor) -> float:
    exact = reference.to(torch.float64)
    size, apart = float(exact.norm()), float((ours.to(torch.float64) - exact).norm())
    return apart / size if size else apart


def _beyond(ran: Ran, ours: Ran, found: Mapping[str, Difference], bounds: Rounding) -> bool:
    """Whether anything is further apart than float32 would put it."""
    gaps = [each.relative_l2 for each in found.values()]
    gaps += [
        _apart(each, ours.gradients[name])
        for name, each in ran.gradients.items()
        if name in ours.gradients and ours.gradients[name].shape == each.shape
    ]
    return max(gaps, default=0.0) > MARGIN * bounds.fine


def _elsewhere(changed: nn.Module, ours: Ran) -> bool:
    """Something took the gradients from the parameters, and nobody said where to."""
    names = dict(changed.named_parameters())
    return any(each.requires_grad for each in names.values()) and not any(name in names for name in ours.gradients)


def _output(name: str, found: Difference, known: _Known, exact: Ran | None, bounds: Rounding) -> OutputDifference:
    reference = known.ran.outputs[name]
    if known.exact is not None and name in known.exact.outputs:
        own = known.exact.outputs[name]
        mine = exact.outputs.get(name) if exact is not None else None
        bounds = in_float64(bounds, reference, own, mine)
    return OutputDifference(name, found, difference(reference, known.again.outputs[name]), bounds)
