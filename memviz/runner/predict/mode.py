"""Stands between autograd and the kernels: every operator of the program passes here, in its order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from memviz.runner.predict.host import MOVES
from memviz.runner.predict.operators import Operator, Treatment, tensors_in, treatment_of
from memviz.runner.predict.refusals import data_needed, not_predicted
from memviz.runner.predict.words import remedy_for, word_for

if TYPE_CHECKING:
    from memviz.runner.predict.autocast import Autocast
    from memviz.runner.predict.recorder import Recorder

_WithoutWords: Any = torch._C.DisableTorchFunction
"""Below an operator nobody says "cuda", and to ask at each attribute would take longer than the operator."""
_PLAIN = torch.Tensor.__torch_dispatch__
_NUMBER = torch.ops.aten._local_scalar_dense.default


class AllocationMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs each operator on tensors without data and tells the recorder of the memory it would take."""

    def __init__(self, recorder: Recorder, kernels: Mapping[str, Callable[..., Any]], autocast: Autocast) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder
        self.autocast = autocast
        self._kernels = kernels
        self._treatments: dict[Operator, Treatment] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled; to say so at each operator would cost as much as the operator."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and any(each.__torch_dispatch__ is not _PLAIN for each in types):
            # A tensor made of others says itself what of them is in memory.
            return NotImplemented
        with _WithoutWords():
            return self._dispatched(func, args, kwargs or {})

    def _dispatched(self, func: Any, args: Any, kwargs: Any) -> Any:
        treatment = self._treatments.get(func)
        if treatment is None:
            treatment = self._treatments[func] = treatment_of(func, self._kernels)
        self.recorder.arrived(treatment, args)
        if treatment.instead is not None:
            out = treatment.instead(func, args, kwargs)
            if out is not NotImplemented:
                return out
        if treatment.decides and any(map(self.recorder.host.is_unknown, tensors_in(args))):
            return self._decided(func)
        if func in MOVES or len(self.recorder.host.unknown):
            out = self.recorder.host.instead(func, args, kwargs)
            if out is not NotImplemented:
                return out
        if self.autocast.is_on and torch.is_inference_mode_enabled():
            # Without autograd nothing else casts on the way here.
            with self:
                args, kwargs = self.autocast.cast(func.name().removeprefix("aten::"), args, kwargs)
        if treatment.parts_in is not None:
            with self:
                return treatment.parts_in(*args, **kwargs)
        out = NotImplemented if treatment.shape is None else treatment.shape(func, args, kwargs)
        if out is NotImplemented:
            out = self._run(func, args, kwargs)
        self.recorder.ran(treatment, args, kwargs, out)
        return out

    def _decided(self, func: Any) -> Any:
        """torch takes the answer out of the data: there is one only where one is stated."""
        stated = self.recorder.stated.for_torch() if func is _NUMBER else None
        if stated is None:
            raise data_needed(word_for(func))
        return stated

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        is_ours = any(each.is_meta for each in tensors_in((*args, *kwargs.values())))
        if is_ours:
            out = self.recorder.host.meets_device(func, args)
            if out is not NotImplemented:
                return out
        try:
            return func(*args, **kwargs)
        except RuntimeError as error:
            unknown_shape = isinstance(error, NotImplementedError) or "INTERNAL ASSERT" in str(error)
            if not is_ours or not (unknown_shape or "meta tensor" in str(error)):
                raise
            if torch.Tag.dynamic_output_shape in func.tags:
                raise data_needed(word_for(func), remedy_for(func)) from error
            if not unknown_shape:
                raise
            why = f"torch {torch.__version__} does not know its shapes without running it ({str(error).strip()})"
            raise not_predicted(word_for(func), why) from error
