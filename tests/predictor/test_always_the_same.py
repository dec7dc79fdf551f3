"""Predictions are deterministic: equal bytes, events, addresses, stacks and order, in every process."""

import gc
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from memviz.runner.execute import predict
from memviz.runner.plan import plan_of
from memviz.runner.request import Request
from memviz.trace.write import write_pickle

pytestmark = pytest.mark.slow

SHORT = {
    "feed_forward": {"layers": "2", "mode": "training"},
    "flux_pipeline": {
        "double_layers": "1",
        "single_layers": "1",
        "text_layers": "1",
        "short_text_layers": "1",
        "denoising": "1",
        "resolution": "256x256",
    },
    "cogvideox": {"layers": "1", "mode": "training"},
    "llama": {"layers": "2"},
    "vit": {"layers": "2"},
}
"""One of each family of libraries. Repeated layers occur once or twice: each further block does the same."""
EXTRAS = (
    Request("gpt2", {"layers": "2", "mode": "training"}, optimizer="adamw", steps=2),
    Request("ltx_video", {"layers": "2"}, (("checkpointing", {"every": "2"}),), optimizer="adamw-fused"),
    Request("llama", {"layers": "1", "mode": "training", "micro_batches": "2"}, (("flat_gradients", {}),)),
)


def requests() -> list[Request]:
    return [*(Request(name, settings) for name, settings in SHORT.items()), *EXTRAS]


def file_of(request: Request) -> str:
    """Return the hash of the written trace file, with every column and string."""
    written = hashlib.sha256()

    class Sink:
        def write(self, data: bytes) -> int:
            written.update(data)
            return len(data)

    write_pickle(predict(plan_of(request), lambda phase: None).trace, Sink())
    return written.hexdigest()


@pytest.mark.parametrize("request_", requests(), ids=lambda each: f"{each.workload}-{each.optimizer}")
def test_a_second_run_in_the_same_process_writes_the_same_file(request_: Request) -> None:
    first = file_of(request_)
    garbage: list[list[object]] = [[] for _ in range(500)]
    for each in garbage:
        each.append(each)
    del garbage
    gc.collect(0)
    assert file_of(request_) == first


def test_processes_with_different_hashes_write_the_same_files() -> None:
    # In processes of their own: once torch.compile was called, torch wraps the optimizers, which their stacks show.
    program = (
        "from tests.predictor.test_always_the_same import EXTRAS, Request, file_of; "
        "print(*map(file_of, [Request('transformer_block'), EXTRAS[0]]))"
    )

    def files_with_hash(seed: str) -> list[str]:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", program]
        root = Path(__file__).parents[2]
        ran = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True)
        return ran.stdout.split()

    assert files_with_hash("12345") == files_with_hash("54321")
