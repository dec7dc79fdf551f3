"""Peaks of compiled training that modded-nanogpt's logs report: `python -m tests.benchmarks.records REPOSITORY`.

Each log of its `records/` holds the whole program, the torch that ran it and the peaks of one of eight H100s. The
program is taken from the log when it is predicted, as rank 0 of 8, and is no part of this project; its data are
tokens that mean nothing. `records.tsv` has the figures, a line each: `--write` puts the table into the README.
Programs with Triton kernels need the `triton` package; FlashAttention 3 is `flash_attention_3.py`.
"""

import argparse
import csv
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.benchmarks.published import ROOT
from tests.benchmarks.readme import write_table

_FIGURES = Path(__file__).with_suffix(".tsv")
_HEAD = (
    "| record | torch | allocated, published | compiled | uncompiled | reserved, published | compiled |",
    "|---|---|---|---|---|---|---|",
)
_TOKENS = {"train": 100_000_000, "val": 2 * 10_485_760}
_MAGIC, _DOCUMENT, _END_OF_TEXT = 20240520, 1024, 50256
MIB = 1 << 20


@dataclass(frozen=True)
class Record:
    log: str
    """Its path within `records/`."""
    torch: str
    steps: int
    """Steps of optimizers after which the peaks of the log are reached: warm-up, and validation after two more."""
    allocated: int
    """MiB, as the others."""
    reserved: int | None

    @property
    def name(self) -> str:
        return self.log.split("/")[1]


@dataclass(frozen=True)
class Peaks:
    allocated: float
    reserved: float


def records() -> list[Record]:
    with _FIGURES.open(newline="") as file:
        return [
            Record(
                row["log"],
                row["torch"],
                int(row["steps"]),
                int(row["allocated"]),
                int(row["reserved"]) if row["reserved"] else None,
            )
            for row in csv.DictReader(file, delimiter="\t")
        ]


_SHORTER = {
    # The third has what torch keeps of the two before it.
    r"^warmup_steps = \d+": "warmup_steps = 3",
    r"(val_loss_every(?:\s*:\s*int)?\s*=) \d+": r"\1 4",
    # Memory does not depend on the windows of FlashAttention, and each has a graph of its own.
    r"(ws_schedule: tuple =) \([\d,\s]+\)": r"\1 (3, 3, 3)",
    r"window_sizes=\(\d+, \d+\)": "window_sizes=(1, 3)",
    r"(num_scheduled_iterations: int =) \d+": r"\1 12",
    r"(num_extension_iterations: int =) \d+": r"\1 4",
    r'"\.\./data/': '"data/',
}
"""Data beside the program, and fewer steps of the same size: peaks stay, as validation beside the optimizers' states is
within them."""


def programs_of(log: str) -> dict[str, str]:
    """Return the program that a log begins with, by file."""
    text = log.partition("\n" + "=" * 100)[0] + "\n"
    main, *others = re.split(r"\n\n-{40}\n# (\w+\.py)\n-{40}\n\n", text)
    return {"train.py": _shortened(main), **dict(zip(others[::2], others[1::2], strict=True))}


def _shortened(code: str) -> str:
    for long, short in _SHORTER.items():
        code = re.sub(long, short, code, flags=re.MULTILINE)
    while True:
        try:
            compile(code, "log", "exec")
        except SyntaxError as error:
            lines = code.split("\n")
            line = lines[(error.lineno or 1) - 1]
            if "f-string" not in str(error) or line.strip() == "pass":
                raise
            # Python 3.12 nests quotes, and the lines that do so print.
            lines[(error.lineno or 1) - 1] = f"{line[: len(line) - len(line.lstrip())]}pass"
            code = "\n".join(lines)
        else:
            return code


def write_programs(log: Path, folder: Path) -> Path:
    """Write a log's program beside its data and return the script."""
    for name, code in programs_of(log.read_text(errors="replace")).items():
        (folder / name).write_text(code)
    for name in ("flash_attn_interface.py", "kernels.py"):
        shutil.copy(Path(__file__).with_name("flash_attention_3.py"), folder / name)
    return folder / "train.py"


def write_data(folder: Path) -> None:
    """Write shards of tokens in which every document is as long as the others."""
    import numpy as np

    folder.mkdir(parents=True)
    for kind, count in _TOKENS.items():
        tokens = np.zeros(count, np.uint16)
        tokens[::_DOCUMENT] = _END_OF_TEXT
        header = np.zeros(256, np.int32)
        header[:3] = _MAGIC, 1, count
        first, *others = (folder / f"fineweb_{kind}_{number:06}.bin" for number in (1, 2, 3))
        first.write_bytes(header.tobytes() + tokens.tobytes())
        for other in others:
            other.hardlink_to(first)


def predict(record: Record, script: Path, options: Sequence[str]) -> Peaks:
    """Predict in the script's folder, which has the data."""
    command = [sys.executable, "-W", "ignore", "-m", "memviz", "predict", "--json", "--card", "H100"]
    # Uncompiled, most need more than the card has.
    command += ["--world-size", "8", "--torch", record.torch, "--steps", str(record.steps), "--continue", *options]
    done = subprocess.run(
        [*command, str(script)],
        cwd=script.parent,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(Path.home())},
        capture_output=True,
        text=True,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise RuntimeError(f"{record.name}: {done.stderr[-2000:]}")
    answer = json.loads(lines[-1])
    return Peaks(answer["peak_allocated_bytes"] / MIB, answer["peak_reserved_bytes"] / MIB)


def row(record: Record, compiled: Peaks, uncompiled: Peaks | None) -> str:
    reserved = ["", ""]
    if record.reserved is not None:
        reserved = [f"{record.reserved:,}", _beside(compiled.reserved, record.reserved)]
    cells = [
        record.name,
        record.torch,
        f"{record.allocated:,}",
        _beside(compiled.allocated, record.allocated),
        "" if uncompiled is None else _beside(uncompiled.allocated, record.allocated),
        *reserved,
    ]
    return f"| {' | '.join(cells)} |"


def _beside(predicted: float, measured: int) -> str:
    return f"{predicted:,.0f} ({_percent(predicted, measured):+.1f} %)".replace("-", "−")


def _percent(predicted: float, measured: int) -> float:
    return 100 * (predicted - measured) / measured


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.records", description=__doc__.split("\n\n")[0])
    parser.add_argument("repository", type=Path, help="a checkout of github.com/KellerJordan/modded-nanogpt")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of records, such as 2025-01-04_SoftCap")
    parser.add_argument("--uncompiled", action="store_true", help="the same programs, run as they stand")
    parser.add_argument("--write", action="store_true", help="the README's table")
    args = parser.parse_args()
    lines, errors = [], []
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder) / "data" / "fineweb10B")
        (Path(folder) / "logs").mkdir()
        for record in records():
            if args.names and record.name not in args.names:
                continue
            script = write_programs(args.repository / "records" / record.log, Path(folder))
            compiled = predict(record, script, ["--compile"])
            uncompiled = predict(record, script, []) if args.uncompiled else None
            lines.append(row(record, compiled, uncompiled))
            errors.append(abs(_percent(compiled.allocated, record.allocated)))
            print(lines[-1], flush=True)
    print(f"median {median(errors):.2f} %, worst {max(errors):.2f} %")
    if args.write:
        write_table("records", "\n".join([*_HEAD, *lines]))


if __name__ == "__main__":
    main()
