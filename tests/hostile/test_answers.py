"""Answers stay small, even for a small file that could expand to a large one."""

from __future__ import annotations

import json

import memviz
from tests.traces import alloc, frame, trace_of


def test_few_frames_with_long_names_in_many_orders_do_not_fill_the_machine() -> None:
    frames = [frame("n" * 4000 + str(i), "f" * 4000 + str(i), i) for i in range(200)]
    trace = trace_of([alloc(512 * i, 512, frames=frames[i:] + frames[:i]) for i in range(100)])
    answer = memviz.open(trace).by("stack").as_json()
    assert len(json.dumps(answer)) < 80 << 20
    with_stacks = sum("stack" in row for row in answer["rows"])
    assert (len(answer["rows"]), with_stacks + answer["stacks_left_out"]) == (100, 100)
    assert with_stacks > 0 and len(answer["rows"][0]["stack"]) == 200
