"""`torchrun` itself starts `record`: two processes that meet by gloo, and one of them fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from memviz.ranks.gather import Gathering, gather_ranks
from memviz.trace.load import load_trace
from tests.commands.test_record import PROGRAM, ROOT, USES_GPU, names

pytest.importorskip("torch.distributed.run", reason="PyTorch is not installed")
BODY = """
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
GPU.malloc(1000 * int(total))
if dist.get_rank() == 1:
    # The launcher ends all others as soon as one fails.
    until = time.monotonic() + 60
    while not os.path.exists("run.rank0.dp0.pickle") and time.monotonic() < until:
        time.sleep(0.05)
    raise KeyError("weights")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_files_are_named_by_rank_and_mesh_and_the_one_that_fails_says_so(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(USES_GPU + BODY)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    launch += ["--no-python", sys.executable, "-c", PROGRAM]
    arguments = ["-o", "run.pickle", "--ranks", "0", "--mesh", "dp=2", "train.py"]
    done = subprocess.run(
        [sys.executable, *launch, *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 1
    assert names(tmp_path) == ["run.rank0.dp0.pickle", "run.rank1.dp1.pickle"], done.stderr
    assert "memviz: Rank 1 of 2 (dp1) failed.\n" in done.stderr
    assert load_trace(tmp_path / "run.rank1.dp1.pickle").about.facts["world_size"] == "2"
    ranks = gather_ranks(Gathering((str(tmp_path),), processes=1)).ranks
    # The sum of both went through the group.
    assert [(rank.number, rank.row.peak_bytes) for rank in ranks] == [(0, 3000), (1, 3000)]
