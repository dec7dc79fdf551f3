"""The `nvidia-smi` that a predicted program finds: run by its path, with the state that the predictor left beside it.

It imports nothing but Python's own library, since a program may call it often.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

DRIVER = "580.00"
"""Of a release that runs every CUDA that torch has wheels for."""
_MIB = 1 << 20
_UNKNOWN = "[N/A]"
_UNITS = {
    "memory.total": "MiB",
    "memory.used": "MiB",
    "memory.free": "MiB",
    "used_memory": "MiB",
    "used_gpu_memory": "MiB",
}


def _of_card(state: dict[str, Any], index: int) -> dict[str, Any]:
    used, total = state["used"] // _MIB, state["total"] // _MIB
    return {
        **dict.fromkeys(("name", "gpu_name"), state["name"]),
        **dict.fromkeys(("uuid", "gpu_uuid"), state["uuid"]),
        "index": index,
        "count": state["cards"],
        "driver_version": DRIVER,
        "compute_cap": state["capability"],
        "memory.total": total,
        "memory.used": used,
        "memory.free": total - used,
        "pid": state["pid"],
        "process_name": "python",
        **dict.fromkeys(("used_memory", "used_gpu_memory"), used),
    }


def _query(state: dict[str, Any], fields: list[str], options: list[str]) -> Iterator[list[str]]:
    """Yield the rows of `--query-...=FIELDS --format=csv,...`."""
    with_units = "nounits" not in options
    if "noheader" not in options:
        yield [f"{name} [{_UNITS[name]}]" if name in _UNITS and with_units else name for name in fields]
    for index in range(state["cards"]):
        card = _of_card(state, index)
        yield [
            f"{card.get(name, _UNKNOWN)}{f' {_UNITS[name]}' if name in _UNITS and with_units else ''}"
            for name in fields
        ]


def _table(state: dict[str, Any]) -> Iterator[str]:
    line = f"+{'-' * 77}+"
    yield line
    heading = f"NVIDIA-SMI {DRIVER}    Driver Version: {DRIVER}    CUDA Version: {state['cuda']}"
    yield f"| {heading:<75} |"
    yield line
    for index in range(state["cards"]):
        memory = f"{state['used'] // _MIB}MiB / {state['total'] // _MIB}MiB"
        yield f"| {index:>3}  {state['name']:<40} {memory:>29} |"
    yield line
    yield f"| {'Predicted by memviz: no sensor of this card is there.':<75} |"
    yield line


def main(state: dict[str, Any], arguments: list[str], write: Callable[[str], Any]) -> int:
    options = dict(argument.lstrip("-").partition("=")[::2] for argument in arguments)
    queries = [name for name in options if name.startswith("query-")]
    if queries:
        fields = [field.strip() for field in options[queries[0]].split(",")]
        for row in _query(state, fields, options.get("format", "").split(",")):
            write(", ".join(row) + "\n")
    elif "L" in options or "list-gpus" in options:
        for index in range(state["cards"]):
            write(f"GPU {index}: {state['name']} (UUID: {state['uuid']})\n")
    else:
        write("\n".join(_table(state)) + "\n")
    return 0


if __name__ == "__main__":
    folder = Path(sys.argv[1]).parent
    sys.exit(main(json.loads((folder / "state.json").read_text()), sys.argv[2:], sys.stdout.write))
