"""Check the largest batch of `fit` in ten configurations, each against a search over every batch.

    python -m tests.benchmarks.largest

Each has a simulated GPU of random size between two peaks.
"""

from __future__ import annotations

import random
import warnings
from dataclasses import replace

from memviz.runner.fit.largest import largest_that_fits
from memviz.runner.plan import plan_of
from memviz.runner.predicted_run import predict
from memviz.runner.request import Request

MOST = 40
CASES = (
    Request("gpt2", {"layers": "2", "sequence": "256"}, optimizer="adamw"),
    Request("gpt2", {"layers": "3", "sequence": "64"}, (("checkpointing", {"every": "1"}),)),
    Request("llama", {"layers": "2", "sequence": "128"}),
    Request("llama", {"layers": "1", "sequence": "512"}, (("chunked_cross_entropy", {"tokens": "1024"}),)),
    Request("llama", {"layers": "2", "sequence": "64"}, (("optimizer_in_backward", {}),), optimizer="adamw"),
    Request("bert", {"layers": "2"}),
    Request("vit", {"layers": "3"}),
    Request("qwen3", {"layers": "1", "sequence": "128"}, (("activation_offload", {}),)),
    Request("ltx_video", {"layers": "1", "mode": "inference"}),
    Request("feed_forward", {"layers": "2"}, (("split_feed_forward", {"splits": "4"}),)),
)


def peak(case: Request, batch: int) -> int:
    turned = replace(case, settings={**case.settings, "batch": str(batch)}, on="predict", numerics=False)
    return predict(plan_of(turned), lambda phase: None).run.peak_reserved_bytes


def main() -> None:
    warnings.simplefilter("ignore")
    luck = random.Random(7)
    for case in CASES:
        peaks = {batch: peak(case, batch) for batch in range(1, MOST + 1)}
        least = max(peaks[1], peaks[2])
        usable = luck.randint(least, max(least, peaks[MOST] - 1))
        true = max((batch for batch in peaks if peaks[batch] <= usable), default=0)

        def ask(batch: int, case: Request = case, peaks: dict[int, int] = peaks, usable: int = usable):
            known = peaks[batch] if batch in peaks else peak(case, batch)
            return known <= usable, known

        answer = largest_that_fits(ask, usable, 1)
        assert answer is not None and ask(answer.value)[0] and not ask(answer.value + 1)[0]
        monotonic = all(peaks[batch] <= peaks[batch + 1] for batch in range(1, MOST))
        words = "exact" if answer.value == true else f"OFF: {answer.value} instead of {true}"
        rises = "" if monotonic else ", though the peak falls at some batch"
        print(f"{case.workload:14} {true:3} of {MOST}: {words}, {answer.predictions} predictions{rises}", flush=True)


if __name__ == "__main__":
    main()
