"""What the mode sees, written into the ledger together with where the program was."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import Parameter
from torch.utils.weak import WeakIdKeyDictionary

from memviz.allocator.settings import Settings
from memviz.runner.predict.cards import Card
from memviz.runner.predict.categories import Categories
from memviz.runner.predict.flops import Work
from memviz.runner.predict.host import Host
from memviz.runner.predict.ledger import Allocation, Ledger
from memviz.runner.predict.operators import Treatment, tensors_in
from memviz.runner.predict.program_position import ACCUMULATE, NO_TASK, Where
from memviz.runner.predict.refusals import not_predicted
from memviz.runner.predict.stacks import Stacks
from memviz.runner.predict.stated import Stated
from memviz.runner.predict.trace import Known
from memviz.trace.intern import Interner
from memviz.trace.model import NO_STACK, Category, Phase


class Recorder:
    def __init__(self, card: Card, settings: Settings, interner: Interner) -> None:
        self.card = card
        self.stacks = Stacks(interner)
        self.where = Where(interner)
        self.categories = Categories()
        self.known = Known(self.categories.of)
        self.ledger = Ledger(settings, self._stack_of_free)
        self.ledger.freed = lambda allocation: self.categories.freed(allocation.number)
        self.host = Host()
        self.stated = Stated()
        self.work = Work()
        self.operators: set[str] = set()
        self._watched: Any = WeakIdKeyDictionary()
        """Parameters, and the hook by which their gradients are told."""
        self.placed: Category | None = None
        """What is being put on the device, while it is."""
        self._workspaces: set[bool] = set()
        self._stack: int | None = None
        """Of the operator that runs."""

    def arrived(self, treatment: Treatment, args: Any) -> None:
        """Before an operator runs: where it is called, and which parameters it uses."""
        where = self.where
        task = where.graph_task()
        if task != where.task and where.turned(task) or task != NO_TASK and not torch.is_grad_enabled():
            self.categories.backward_goes_on()
        self._stack = None
        if where.nodes_are_new():
            self._stack = self.stacks.here(treatment.name)
            where.made_nodes(self._stack)
        for each in args:
            if type(each) is Parameter:
                self._uses(each)

    def ran(self, treatment: Treatment, args: Any, kwargs: Any, out: Any) -> None:
        self.operators.add(treatment.name)
        if treatment.gives_new:
            for each in tensors_in(out):
                if each.is_meta:
                    self._has(each, treatment, args)
        elif treatment.resizes:
            for each in tensors_in(out):
                if each.is_meta:
                    self.resized(each.untyped_storage(), treatment.name)
        if treatment.gives_new or treatment.writes:
            met = tensors_in((*args, *kwargs.values(), out if treatment.gives_new else None))
            self.work.add(treatment.formula, args, kwargs, met, out)
        if treatment.uses_cublas:
            self._needs_cublas(treatment, out)
        if treatment.temporaries is not None and is_on_device(out):
            sizes = treatment.temporaries(args, kwargs, out, self.card)
            self._for_a_moment(sizes, treatment.name)

    def resized(self, storage: torch.UntypedStorage, operator: str) -> None:
        known = self.ledger.knows(storage)
        if known is None or known.requested != storage.nbytes():
            stack = self._say(operator, Category.UNKNOWN)
            self.ledger.replace(storage, stack)

    def know(self, tensor: torch.Tensor, category: Category) -> None:
        """What the tensor's memory is for, told after it was taken."""
        allocation = self.ledger.knows(tensor.untyped_storage()) if tensor.is_meta else None
        if allocation is not None:
            self.categories.know(allocation.number, category)

    def know_output(self, tensor: torch.Tensor) -> None:
        """Of a module; an input that is handed through stays an input."""
        allocation = self.ledger.knows(tensor.untyped_storage()) if tensor.is_meta else None
        if allocation is not None and self.categories.is_known_as(allocation.number, Category.UNKNOWN):
            self.categories.know(allocation.number, Category.OUTPUT)

    def _uses(self, parameter: Parameter) -> None:
        if parameter not in self._watched:
            self.watch(parameter)
        allocation = self.ledger.knows(parameter.untyped_storage()) if parameter.is_meta else None
        if allocation is not None and not self.categories.is_known_as(allocation.number, Category.PARAMETER):
            self.categories.know(allocation.number, Category.PARAMETER)

    def watch(self, parameter: Parameter) -> None:
        """Its gradient is told from other memory at the moment when it is done."""
        if self._watched.get(parameter) is None:
            leaf: Any = parameter
            hooks = parameter.requires_grad
            self._watched[parameter] = (
                leaf.register_post_accumulate_grad_hook(self._gradient_is_done) if hooks else None
            )

    def know_parameters(self) -> None:
        """Weights may have got other memory, such as one of another type."""
        for parameter in list(self._watched):
            self._uses(parameter)

    def close(self) -> None:
        self.ledger.closed = True
        for hook in self._watched.values():
            if hook is not None:
                hook.remove()

    def _gradient_is_done(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None and not self.ledger.closed:
            self.know(parameter.grad, Category.GRADIENT)

    def _has(self, tensor: torch.Tensor, treatment: Treatment, args: Any) -> None:
        if tensor.layout is not torch.strided:
            raise not_predicted(treatment.name, "how much a sparse tensor takes depends on its values")
        storage = tensor.untyped_storage()
        ledger = self.ledger
        if ledger.knows(storage) is not None or storage.nbytes() == 0:
            return
        if any(each.is_meta and each.untyped_storage()._cdata == storage._cdata for each in tensors_in(args)):
            # A view under another name, of memory that is not on this device.
            return
        ledger.take(storage, self._say(treatment.name, Category.UNKNOWN))

    def _needs_cublas(self, treatment: Treatment, out: Any) -> None:
        """Each thread has a handle of its own, and on a card backward runs in another one."""
        in_backward = self.where.task != NO_TASK
        if in_backward not in self._workspaces and is_on_device(out):
            self._workspaces.add(in_backward)
            self._hidden(self.card.cublas_workspace_bytes, treatment.name, Category.WORKSPACE)

    def _for_a_moment(self, sizes: Any, operator: str) -> None:
        taken = [self._hidden(size, operator, Category.TEMPORARY) for size in sizes if size > 0]
        for allocation in reversed(taken):
            self.ledger.free(allocation)

    def _hidden(self, size: int, operator: str, category: Category) -> Allocation:
        return self.ledger.malloc(size, self._say(operator, category))

    def _stack_of_free(self) -> int:
        return self.stacks.here("", self.where.in_backward()[2])

    def _say(self, operator: str, category: Category) -> int:
        """Notes what is known of the allocation to come; its stack."""
        where, known = self.where, self.known
        module, forward_stack, node = where.in_backward()
        phase = where.phase if self.placed is None else Phase.UNKNOWN
        recomputing = where.is_recomputing
        kept = (phase == Phase.FORWARD or (phase == Phase.UNKNOWN and not where.phases)) or recomputing
        if category is Category.UNKNOWN and node == ACCUMULATE:
            category = Category.GRADIENT
        self.categories.allocated(self.placed or category, may_be_kept=kept and self.placed is None)
        known.module.append(module)
        known.phase.append(phase)
        known.forward_stack.append(NO_STACK if recomputing else forward_stack)
        if self._stack is None or node:
            self._stack = self.stacks.here(operator, node)
        return self._stack


def is_on_device(out: Any) -> bool:
    return any(each.is_meta for each in tensors_in(out))
