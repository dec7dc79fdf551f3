"""Functions that a program registers with atexit, and a second program in the same process."""

from pathlib import Path

import pytest
import torch.distributed as dist

import memviz
from memviz.errors import UsageError
from memviz.predictor.group.ranks import GroupRank
from memviz.runner.predicted_script import ScriptOrder, predict_script
from memviz.runner.record.script import load_script

SHARDED = """
import atexit
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("nccl")
mesh = dist.init_device_mesh("cuda", (dist.get_world_size(),))
model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh).to_empty(device="cuda")
model(torch.randn(8, 64, device="cuda")).sum().backward()
atexit.register(lambda: print("rank", dist.get_rank(), torch.cuda.memory_allocated() > 0))
"""
ENDS = """
import atexit

def last():
    print("last")

atexit.register(last)
atexit.register(print, "in vain")
atexit.unregister(print)

@atexit.register
def fails():
    raise ValueError("on the way")

atexit.register(print, "first")
"""


def run(path: Path, text: str, rank: GroupRank | None = None) -> int:
    path.write_text(text)
    done = predict_script(load_script(str(path), []), ScriptOrder(rank=rank))
    assert done.exit_status == 0 and done.stopped is None
    return done.estimate.peak_requested


def test_many_programs_shard_in_one_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """torch takes back operators of FSDP2 when Python ends."""
    peaks = [run(tmp_path / "train.py", SHARDED, GroupRank(number, 2)) for number in (0, 1, 0)]
    assert len(set(peaks)) == 1 and not dist.is_initialized()
    assert capsys.readouterr().out == "rank 0 True\nrank 1 True\nrank 0 True\n"


def test_exit_functions_run_as_python_runs_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "ends.py", ENDS)
    said = capsys.readouterr()
    assert said.out == "first\nlast\n"
    assert "ValueError: on the way" in said.err and "atexit callback" in said.err


def test_a_block_is_one_process_of_many() -> None:
    with memviz.predicting(world_size=4, rank=3) as predicted:
        dist.init_process_group("nccl")
        assert (dist.get_rank(), dist.get_world_size()) == (3, 4)
    assert predicted.rank == GroupRank(3, 4)
    assert memviz.predict(dist.is_initialized, world_size=2).rank == GroupRank(0, 2)
    with pytest.raises(UsageError, match="pass world_size"), memviz.predicting(rank=1):
        pass
