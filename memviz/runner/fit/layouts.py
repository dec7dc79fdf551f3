"""How GPUs could be parted, where only their number is given.

All ways do the same work: a way along which fewer have a batch of their own gives each of them a larger one. Parts of
matrices talk in every block, so they stay within a machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from memviz.errors import UsageError
from memviz.runner.knobs import described
from memviz.runner.parallel.parallel import AXES, GPUS, Parallel
from memviz.runner.plan import Plan, plan_of
from memviz.runner.predict.group.ranks import CARDS_OF_A_MACHINE
from memviz.runner.request import Request

LAYOUT = "parallel"
_MOST_STAGES = 16


def layouts_of(plan: Plan) -> tuple[Mapping[str, str], ...]:
    """None where somebody said along which axes, or the workload has no batch to give to fewer."""
    count, request = plan.parallel.gpus, plan.request
    if count == 1 or set(request.parallel) != {GPUS} or _batch_of(plan) is None:
        return ()
    made = (_option(plan, parallel) for parallel in _parted(count) if parallel != plan.parallel)
    return tuple(option for option in made if _is_possible(request, option))


def parted(request: Request, option: Mapping[str, str]) -> Request:
    """As one of these says."""
    axes = {name: text for name, text in option.items() if name in AXES}
    settings = {name: text for name, text in option.items() if name not in AXES}
    return replace(request, parallel=axes, settings={**request.settings, **settings})


def _option(plan: Plan, parallel: Parallel) -> dict[str, str]:
    """Its axes, and the knobs of the workload that change with them: parts of a matrix share a batch, and stages take
    as many one after the other as there are of them."""
    option, workload = dict(parallel.as_texts), plan.workload
    if parallel.tensor > 1:
        option["batch"] = str((_batch_of(plan) or 1) * parallel.tensor)
    if parallel.pipeline > 1:
        option["micro_batches"] = str(workload.micro_batches * parallel.pipeline)
    return option


def _parted(count: int) -> Iterator[Parallel]:
    for tensor in _divisors(count):
        for pipeline in _divisors(count // tensor):
            for data in _divisors(count // tensor // pipeline):
                made = Parallel(pipeline, data, count // tensor // pipeline // data, tensor)
                if tensor <= CARDS_OF_A_MACHINE and pipeline <= _MOST_STAGES and _is_usual(made):
                    yield made


def _is_usual(parallel: Parallel) -> bool:
    """Of many GPUs, shards are copied where each machine holds a whole copy, and nowhere else."""
    is_both = parallel.data > 1 and parallel.shard > 1
    return not is_both or parallel.gpus <= CARDS_OF_A_MACHINE or parallel.shard * parallel.tensor == CARDS_OF_A_MACHINE


def _divisors(count: int) -> list[int]:
    return [size for size in range(1, count + 1) if count % size == 0]


def _is_possible(request: Request, option: Mapping[str, str]) -> bool:
    try:
        plan_of(parted(request, option))
    except UsageError:
        return False
    return True


def _batch_of(plan: Plan) -> int | None:
    knobs = {knob.name: knob.default for knob in described(plan.workload)}
    return int(knobs["batch"]) if {"batch", "micro_batches"} <= set(knobs) else None
