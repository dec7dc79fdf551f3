"""Others' trainers that shard with FSDP: accelerate's own loop and transformers' Trainer, unmodified."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from memviz.runner.predict.group.ranks import GroupRank
from memviz.runner.predict.predicted_script import ScriptOrder, predict_script
from memviz.runner.record.script import load_script

state = pytest.importorskip("accelerate.state", reason="accelerate is not installed, and it is what shards here")
PROGRAM = Path(__file__).parents[3] / "programs" / "sharded_trainer.py"
RANKS = 4


@pytest.fixture(autouse=True)
def _of_its_own() -> Iterator[None]:
    """accelerate holds one group for a process."""
    yield
    state.AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", ["accelerate", "trainer"])
@pytest.mark.parametrize("fsdp", [1, 2])
def test_each_rank_holds_its_share(way: str, fsdp: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Weights of the optimizer are in fp32 under bf16, and AdamW has two states of each."""
    script = load_script(str(PROGRAM), [way, str(fsdp)])
    done = predict_script(script, ScriptOrder(rank=GroupRank(1, RANKS)))
    assert (done.exit_status, done.stopped) == (0, None)
    count, weights, states = map(int, capsys.readouterr().out.splitlines()[-1].split())
    assert states == 2 * weights == 2 * 4 * count // RANKS
    assert done.estimate.steps == 2
    # Beside both are gradients, a layer that is gathered, and activations.
    assert done.estimate.peak_requested > weights + states
