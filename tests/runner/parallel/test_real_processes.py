"""The step predicted on several GPUs is correct: on two real processes its gradients equal those of one."""

import os
import subprocess
from pathlib import Path

import pytest

from memviz.predictor.group.ranks import GroupRank
from tests import forked

pytestmark = pytest.mark.slow

ROUNDING = 1e-4
WAYS = (
    *("tensor", "pipeline", "shard", "shard+chunked_cross_entropy", "shard+chunked_feed_forward"),
    *("tensor+chunked_feed_forward", "pipeline+chunked_feed_forward"),
)


def test_gradients_are_those_of_one_process(tmp_path: Path) -> None:
    ranks = [_begun(GroupRank(number, 2), tmp_path / "meet") for number in range(2)]
    for process in ranks:
        out, errors = process.communicate(timeout=forked.MOST_SECONDS)
        assert process.returncode == 0, errors
        off = dict(line.split() for line in out.splitlines())
        assert tuple(off) == WAYS and all(float(share) < ROUNDING for share in off.values()), out


def _begun(rank: GroupRank, meet_at: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, **rank.environment, "MEET_AT": meet_at.as_uri(), "CUDA_VISIBLE_DEVICES": ""}
    environment |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(forked.ROOT)}
    program = ["-W", "ignore", "-m", "tests.runner.parallel.two_processes", *WAYS]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return forked.start(program, of=forked.with_torch, cwd=forked.ROOT, env=environment, **streams)
