"""The unpickler that knows no classes: dicts, lists, tuples, texts, bytes and numbers, and nothing else.

Python's own unpickler can refuse classes, but has no limits: a file of a few bytes makes it
reserve gigabytes for its memo, hash a tuple nested a million deep (which ends the process), or take an
object from the registry of extensions. So the operations are read here. Only those exist that a pickler
writes for plain data; any other is refused by its name. Every object is counted before it is kept.

Interpreting a million events would take seconds, so long rows of them, which are 99 % of a snapshot, and of blocks
and annotations are handed to `runs`, which decodes them as columns without making any object.
"""

from __future__ import annotations

from typing import Any

from memviz.errors import TraceError
from memviz.trace.intern import Interner
from memviz.trace.unpickle.columns import Runs, Watch
from memviz.trace.unpickle.machine import OPERATIONS, STOP, Machine, RefersToRow, refused_operation
from memviz.trace.unpickle.stream import AGAIN, Progress, Readable

__all__ = ["RefersToRow", "Watch", "unpickle"]


def unpickle(
    file: Readable,
    interner: Interner,
    progress: Progress | None = None,
    *,
    runs: bool = True,
    watch: Watch | None = None,
) -> Any:
    """The object in the file. Long rows come as columns (`Events`, `BlockRows`, `AnnotationRows`) among the
    items of their list.

    `runs=False` reads every row by itself: slower, and the only way for a file that refers back to a whole one.
    `watch` sees each row of events as soon as it is decoded.
    """
    machine = Machine(file, interner.budget, progress)
    if runs:
        machine.runs = Runs(interner, machine, watch)
    while True:
        while machine.at >= machine.low_water:
            machine.refill()
        code = machine.buffer[machine.at]
        machine.at += 1
        if code == STOP:
            machine.check_limits()
            interner.budget.charge(machine.cost)
            # Each knows the other, so both would stay, with memo and rows, until Python looks for such rings.
            machine.runs = None
            if machine.marks or len(machine.stack) != 1:
                raise TraceError("Its pickle is damaged: it ends with unfinished objects.", remedy=AGAIN)
            return machine.stack[0]
        operation = OPERATIONS[code]
        if operation is None:
            raise refused_operation(code, machine.before + machine.at - 1)
        operation(machine)
