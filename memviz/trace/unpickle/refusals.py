"""What is said of a pickle that is not read."""

from __future__ import annotations

from memviz.errors import TraceError
from memviz.trace.unpickle.stream import AGAIN

NOT_OURS = "This does not look like what torch.cuda.memory._dump_snapshot writes."
_CHECKPOINT_MODULES = ("torch", "collections", "numpy", "transformers", "_codecs")
_REFUSED = {
    ord("c"): "a class",
    0x93: "a class",
    ord("i"): "a class",
    0x81: "a new object of a class",
    0x92: "a new object of a class",
    ord("o"): "a new object of a class",
    ord("R"): "a call of a function",
    ord("b"): "setting an object's state",
    ord("P"): "a persistent id",
    ord("Q"): "a persistent id",
    0x82: "an extension",
    0x83: "an extension",
    0x84: "an extension",
    0x8F: "a set",
    0x90: "a set",
    0x91: "a set",
    0x97: "an out-of-band buffer",
    0x98: "an out-of-band buffer",
    ord("2"): "copying the top of the stack",
    ord("0"): "dropping the top of the stack",
    ord("1"): "dropping the top of the stack",
}


def damaged() -> TraceError:
    return TraceError("Its pickle is damaged: an operation has nothing to work on.", remedy=AGAIN)


def refused_operation(code: int, at: int) -> TraceError:
    name = _REFUSED.get(code)
    if name is None:
        reason = f"It is not a pickle, or a damaged one (byte {at:,} is no known operation)."
        return TraceError(reason, remedy=NOT_OURS)
    return TraceError(f"Its pickle asks for {name}, and a snapshot holds only plain data.", remedy=NOT_OURS)


def names_a_class(module: str, name: str) -> TraceError:
    """Checkpoints are the files that people mix up with snapshots; they start by naming torch's classes."""
    if module.split(".")[0] in _CHECKPOINT_MODULES:
        reason = f"It is a model checkpoint or another program's object (a {module}.{name}), not a memory snapshot."
        return TraceError(reason, remedy="Record one with torch.cuda.memory._dump_snapshot('trace.pickle').")
    reason = f"Its pickle asks for the class {module}.{name}; classes are never loaded from a file."
    return TraceError(reason, remedy=NOT_OURS)
