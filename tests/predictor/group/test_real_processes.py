"""The program that is predicted is one that works: on two real processes its step is that of one process alone."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from memviz.predictor.group.ranks import GroupRank
from tests import forked
from tests.marks import slow
from tests.second_process import predict

PROGRAM = Path(__file__).parents[2] / "programs" / "parallel_step.py"
ROUNDING = 1e-6


def begun(rank: GroupRank, way: str, meet_at: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, **rank.environment, "MEET_AT": meet_at.as_uri(), "CUDA_VISIBLE_DEVICES": ""}
    # A file is where they meet; and threads of two would wait for one another.
    environment |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return forked.start([str(PROGRAM), way], of=forked.with_torch, env=environment, text=True, **pipes)


@pytest.mark.parametrize("way", ["data", *slow("sharded", "tensor")])
def test_gradients_and_outputs_are_those_of_one_process(way: str, tmp_path: Path) -> None:
    ranks = [begun(GroupRank(number, 2), way, tmp_path / "meet") for number in range(2)]
    for process in ranks:
        out, errors = process.communicate(timeout=forked.MOST_SECONDS)
        assert process.returncode == 0, errors
        assert float(out) < ROUNDING


@pytest.mark.parametrize("way", ["data", *slow("sharded", "tensor")])
def test_the_same_program_is_predicted(way: str) -> None:
    done = predict("--json", "--world-size", "2", "--rank", "1", PROGRAM, way)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["peak_requested_bytes"] > 0 and figures["out_of_memory"] == 0
