"""`record` in its own process, with a fake GPU; the recorded script imports the same `GPU`."""

import os
import sys

from memviz.commands import FAILED, parser
from memviz.commands.record import record
from memviz.errors import MemvizError
from tests.runner.fake_gpu import FakeGpu

GPU = FakeGpu(limit=50 << 20, is_used=False)
GPU.refuses = os.environ.get("FAKE_GPU_REFUSES", "")


def main() -> None:
    try:
        sys.exit(record(parser().parse_args(["record", *sys.argv[1:]]), GPU.accelerator))
    except MemvizError as error:
        sys.stderr.write(f"memviz: {error}\n")
        sys.exit(FAILED)
