"""The dispatch mode between autograd and the kernels: it sees every operator of the program, in order."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode

from memviz.runner.predict.allocation_recorder import AllocationRecorder
from memviz.runner.predict.arguments import is_on_device, tensors_of
from memviz.runner.predict.autocast import Autocast, Kernel
from memviz.runner.predict.compat import without_functions
from memviz.runner.predict.cuda_memory import OutOfMemoryError, without_own_frames
from memviz.runner.predict.group.dtensor import run_on_shards
from memviz.runner.predict.named_devices import META
from memviz.runner.predict.operator_treatments import Operator, Treatment, treatment_of
from memviz.runner.predict.prediction_errors import (
    OF_SPARSE,
    data_needed,
    in_words_of_a_card,
    name_for_users,
    not_predicted,
    shapes_not_registered,
)
from memviz.runner.predict.shapes import ShapeKey, shape_key
from memviz.runner.predict.sparse import Sparse, may_be_sparse
from memviz.runner.predict.tensor_answers import ValueReads

# torch's messages for an operator without a meta kernel.
_NO_SHAPES = re.compile("no fake impl|no meta function|Meta kernel")
_PLAIN = torch.Tensor.__torch_dispatch__


class AllocationMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs each operator on tensors without data and records the memory it would take.

    Threads take turns, and an operator that finds no memory leaves nothing behind.
    """

    def __init__(self, recorder: AllocationRecorder, kernels: Mapping[str, Kernel], autocast: Autocast) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder
        self.autocast = autocast
        self._kernels = kernels
        self._treatments: dict[Operator, Treatment] = {}
        self.looks = ValueReads(recorder, self)
        self._sparse = Sparse(recorder)

    # To refuse them with a reason.
    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch's own answer costs as much as an operator, and nothing here is compiled.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            with self.recorder.ledger.lock:
                return self._dispatch(func, types, args, kwargs or {})
        except OutOfMemoryError as error:
            args = kwargs = None
            raise without_own_frames(error) from None

    def _dispatch(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(func, HigherOrderOperator):
            raise not_predicted(func.__name__, "it takes functions as arguments, and no rule says what they would take")
        if types and any(kind.__torch_dispatch__ is not _PLAIN for kind in types):
            # A wrapper subclass dispatches to its own parts.
            return run_on_shards(self, func, args, kwargs)
        # Function modes see no device below an operator, and would take longer than it.
        with without_functions():
            return self._run_operator(func, args, kwargs)

    def _run_operator(self, func: Any, args: Any, kwargs: Any) -> Any:
        treatment = self._treatments.get(func)
        if treatment is None:
            treatment = self._treatments[func] = self._treatment_of(func)
        self.recorder.before_op(treatment, args)
        out = self._override(func, treatment, args, kwargs)
        if out is not NotImplemented:
            return out
        if self.autocast.is_on and torch.is_inference_mode_enabled():
            # Without autograd nothing else casts on the way here.
            with self:
                args, kwargs = self.autocast.cast(func.name().removeprefix("aten::"), args, kwargs)
        if treatment.parts_in is not None:
            with self, self.autocast.below(func.name().removeprefix("aten::")):
                return treatment.parts_in(*args, **kwargs)
        shapes = None if treatment.is_view or treatment.resizes else shape_key(args, kwargs)
        out = self._result(func, treatment, args, kwargs, shapes)
        self.recorder.after_op(treatment, args, kwargs, out, shapes)
        if not treatment.is_view:
            writes, may_say = treatment.writes, treatment.may_say
            self.recorder.host.follow(func, args, kwargs, out, writes=writes, may_say=may_say)
            if treatment.may_choose:
                self.recorder.choices.follow(func, args, out)
        return out

    def _treatment_of(self, func: Any) -> Treatment:
        treatment = treatment_of(func, self._kernels, self.autocast.release)
        instead = self.recorder.overrides.get(func)
        treatment = replace(treatment, sparse=self._sparse.runs.get(func))
        return treatment if instead is None else replace(treatment, instead=instead)

    def _override(self, func: Any, treatment: Treatment, args: Any, kwargs: Any) -> Any:
        """Return the result of an operator that is answered without running on the device, or NotImplemented."""
        if treatment.sparse is not None and may_be_sparse(func, args):
            with self:
                out = treatment.sparse(*args, **kwargs)
            if out is not NotImplemented:
                return out
        if treatment.instead is not None:
            out = treatment.instead(func, args, kwargs)
            if out is not NotImplemented:
                return out
        if treatment.looks is not None:
            out = self.looks.instead(func, treatment, args, kwargs)
            if out is not NotImplemented:
                return out
        out = self.recorder.host.override(func, args, kwargs, moves=treatment.moves)
        if treatment.moves and out is not NotImplemented:
            self.recorder.copied_to_host(treatment, args, kwargs, out)
        if out is not NotImplemented and treatment.may_choose:
            self.recorder.choices.follow(func, args, out)
        return out

    def _result(self, func: Any, treatment: Treatment, args: Any, kwargs: Any, shapes: ShapeKey | None) -> Any:
        out = NotImplemented if treatment.shape is None else treatment.shape(func, args, kwargs)
        if out is not NotImplemented:
            return out
        if treatment.results is None or shapes is None:
            return self._run(func, args, kwargs)
        return treatment.results.of(func, args, kwargs, shapes, self._run)

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        if "device" in kwargs and kwargs["device"] is not None and torch.device(kwargs["device"]).type == "cuda":
            # From torch's own C++, which the function mode does not see.
            kwargs = {**kwargs, "device": META}
        at_once = bool(args) and is_on_device(args[0])
        on_device = at_once or any(tensor.is_meta for tensor in tensors_of((*args, *kwargs.values())))
        if on_device and not at_once:
            out = self.recorder.host.mixed_devices(func, args)
            if out is not NotImplemented:
                return out
        try:
            return func(*args, **kwargs)
        except RuntimeError as error:
            in_words_of_a_card(error, func, args)
            if on_device and func.namespace != "aten" and _NO_SHAPES.search(str(error)):
                raise shapes_not_registered(func) from error
            unknown_shape = isinstance(error, NotImplementedError) or "INTERNAL ASSERT" in str(error)
            if not on_device or not (unknown_shape or "meta tensor" in str(error)):
                raise
            if torch.Tag.dynamic_output_shape in func.tags:
                raise data_needed(name_for_users(func), takes_value=False) from error
            if not unknown_shape:
                raise
            reason = str(error).partition(". ")[0].strip()
            why = f"torch {torch.__version__} does not know its shapes without running it ({reason})"
            if "SparseMeta" in reason:
                why = OF_SPARSE
            raise not_predicted(name_for_users(func), why) from error
