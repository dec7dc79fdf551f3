"""A request: knobs, parallel layouts, and refusals before anything is built; a run as JSON and in its trace."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.errors import TraceError, UsageError
from memviz.runner.plan import plan_of
from memviz.runner.request import (
    ALONE,
    FACT,
    Knob,
    Parallel,
    RankClass,
    Request,
    Run,
    Seconds,
    as_text,
    check_knobs,
    command_of,
    knob,
    knobs_of,
    load_run,
    parallel_of,
    parse_name_and_knobs,
    run_json,
    run_of,
    save_run,
    with_knobs,
    with_run,
)
from memviz.text import nearest
from memviz.trace.model import About, Trace
from memviz.trace.write import write_pickle
from tests.runner.runs import run
from tests.traces import alloc, trace_of


@dataclass(frozen=True)
class Tuned:
    name: ClassVar[str] = "tuned"
    together: ClassVar[dict[str, tuple[str, ...]]] = {"resolution": ("height", "width")}

    height: int = knob(512, "how high", unit="pixels", least=1)
    width: int = knob(768, "how wide", unit="pixels", least=1)
    rate: float = knob(0.5, "a share")
    quick: bool = knob(False, "whether to hurry")
    word: str = knob("plain", "anything")
    kind: str = knob("a", "one of few", choices=("a", "b"))
    every: int | None = knob(None, "or none of it")
    storage: Literal["e4m3", "e5m2"] = "e4m3"
    function: Any = field(default=None, metadata={"python_only": True})

    def __post_init__(self) -> None:
        check_knobs(self)
        if self.height > 10_000:
            raise ValueError(f"height {self.height} is out of sight.")


def test_what_there_is_to_turn():
    assert knobs_of(Tuned)[:2] == (
        Knob("height", "int", False, 512, "how high", (), "pixels"),
        Knob("width", "int", False, 768, "how wide", (), "pixels"),
    )
    kinds = {each.name: (each.type, each.optional, each.default, each.choices) for each in knobs_of(Tuned)[2:]}
    assert kinds == {
        "rate": ("float", False, 0.5, ()),
        "quick": ("bool", False, False, ()),
        "word": ("text", False, "plain", ()),
        "kind": ("text", False, "a", ("a", "b")),
        "every": ("int", True, None, ()),
        "storage": ("text", False, "e4m3", ("e4m3", "e5m2")),
    }
    # An instance shows its own values.
    assert knobs_of(Tuned(height=3))[0].default == 3


def test_texts_become_values():
    texts = {"height": "1_024", "rate": "1e-3", "quick": "Yes", "word": " x y ", "kind": "b", "every": "4"}
    assert with_knobs(Tuned, texts) == Tuned(height=1024, rate=1e-3, quick=True, word="x y", kind="b", every=4)
    for text, value in (("true", True), ("ON", True), ("1", True), ("no", False), ("off", False)):
        assert with_knobs(Tuned, {"quick": text}).quick is value
    for text in ("none", "None", ""):
        assert with_knobs(Tuned, {"every": text}).every is None
    for text in ("256x384", "256 x 384", "256×384", "256X384"):
        assert with_knobs(Tuned, {"resolution": text}) == Tuned(height=256, width=384)
    with pytest.raises(UsageError, match="no knob function"):
        with_knobs(Tuned, {"function": "print"})
    with pytest.raises(UsageError, match="kind cannot be c"):
        Tuned(kind="c")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (
            {"hieght": "1"},
            "tuned has no knob hieght. Did you mean height? There are height, width, rate, quick, word, kind, every, "
            "storage, resolution.",
        ),
        ({"height": "tall"}, "tuned: height is a whole number, as in 16 or 1_000; not 'tall'."),
        ({"height": "1.5"}, "tuned: height is a whole number, as in 16 or 1_000; not '1.5'."),
        ({"height": "none"}, "tuned: height is a whole number, as in 16 or 1_000; not 'none'."),
        ({"rate": "half"}, "tuned: rate is a number, as in 0.1; not 'half'."),
        ({"quick": "maybe"}, "tuned: quick must be true or false (yes, no, on, off), not 'maybe'."),
        ({"kind": "c"}, "tuned: kind cannot be c. There are a, b."),
        ({"storage": "e5m3"}, "tuned: storage cannot be e5m3. Did you mean e5m2? There are e4m3, e5m2."),
        ({"height": "-1"}, "tuned: height is -1; the minimum is 1."),
        ({"height": f"{1 << 41}"}, "tuned: height is 2199023255552; the maximum is 1,099,511,627,776."),
        ({"height": "20000"}, "tuned: height 20000 is out of sight."),
        ({"resolution": "512"}, "tuned: resolution is height x width, as in 512x768; not '512'."),
        ({"resolution": "5x6", "height": "5"}, "tuned: height is given more than once."),
    ],
)
def test_what_is_wrong_is_named(texts, message):
    with pytest.raises(UsageError) as caught:
        with_knobs(Tuned, texts)
    assert str(caught.value) == message


def test_only_what_differs_is_written():
    assert as_text(Tuned()) == {}
    assert as_text(Tuned(every=2, quick=True)) == {"quick": "true", "every": "2"}
    assert as_text(Tuned(), everything=True)["every"] == "none"


@given(
    st.builds(
        Tuned,
        height=st.integers(1, 10_000),
        width=st.integers(1, 10_000),
        rate=st.floats(allow_nan=False),
        quick=st.booleans(),
        kind=st.sampled_from(["a", "b"]),
        every=st.none() | st.integers(-(1 << 40), 1 << 40),
        storage=st.sampled_from(["e4m3", "e5m2"]),
    ),
    st.booleans(),
)
def test_texts_come_back(made, everything):
    assert with_knobs(Tuned, as_text(made, everything=everything)) == made


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("checkpointing", ("checkpointing", {})),
        ("checkpointing:", ("checkpointing", {})),
        ("checkpointing:every=2,offload=true", ("checkpointing", {"every": "2", "offload": "true"})),
        (" checkpointing : every = 2 ", ("checkpointing", {"every": "2"})),
        ("checkpointing:skip=0,3,5,every=2", ("checkpointing", {"skip": "0,3,5", "every": "2"})),
        ("allocator:conf=a:True,b:[1:2,>:4]", ("allocator", {"conf": "a:True,b:[1:2,>:4]"})),
    ],
)
def test_a_name_with_its_knobs(text, parsed):
    assert parse_name_and_knobs(text) == parsed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Write NAME or NAME:KNOB=VALUE,KNOB=VALUE; '' has no name."),
        (":every=2", "Write NAME or NAME:KNOB=VALUE,KNOB=VALUE; ':every=2' has no name."),
        ("checkpointing=2", "Write checkpointing:KNOB=2 to set a knob of it."),
        ("checkpointing:offload", "checkpointing: 'offload' has no value; write KNOB=VALUE."),
        ("checkpointing:every=2,every=3", "checkpointing: every is given more than once."),
    ],
)
def test_a_name_that_cannot_be_read(text, message):
    with pytest.raises(UsageError) as caught:
        parse_name_and_knobs(text)
    assert str(caught.value) == message


def test_the_nearest_spelling():
    both = ["checkpointing", "split"]
    assert nearest("chekpointing", both) == " Did you mean checkpointing? There are checkpointing, split."
    assert nearest("zzz", ["split"]) == " There is split."
    assert nearest("zzz", []) == " It has none."


def test_json_and_back() -> None:
    assert Run.from_json(json.loads(json.dumps(run().as_json()))) == run()
    bare = run(seconds=None, fit=None, flops=None, numerics=None)
    assert Run.from_json(json.loads(json.dumps(bare.as_json()))) == bare


def test_a_saved_run_is_a_snapshot_and_a_run_and_a_foreign_snapshot_is_none(tmp_path: Path) -> None:
    predicted = replace(one_allocation(), about=About("predicted", "RTX 4090"))
    save_run(predicted, run(), tmp_path / "a.pickle")
    read, found = load_run(tmp_path / "a.pickle")
    assert found == run()
    assert read.about.label == "predicted for RTX 4090"
    # A prediction has no clock.
    assert read.devices == tuple(replace(device, is_timed=False) for device in predicted.devices)
    with (tmp_path / "b.pickle").open("wb") as file:
        write_pickle(one_allocation(), file)
    with pytest.raises(TraceError, match=r"^b.pickle: .*not a run of memviz"):
        load_run(tmp_path / "b.pickle")


@pytest.mark.parametrize(
    "change",
    [
        {"label": 3},
        {"peak_allocated_bytes": "<b>"},
        {"mode": "replayed"},
        {"request": {"workload": ["x"]}},
        {"request": {"workload": "x", "settings": {"batch": {}}}},
        {"fit": {"usable_bytes": 1}},
        {"fit": 3},
        {"provenance": []},
    ],
)
def test_a_file_that_lies_about_types_or_has_no_json_has_no_run(change: dict[str, Any]) -> None:
    for text in (json.dumps({**run().as_json(), **change}), "{"):
        assert run_of(replace(one_allocation(), about=About("predicted", "", facts={FACT: text}))) is None
    assert run_of(with_run(one_allocation(), run())) == run()


def one_allocation() -> Trace:
    return trace_of([alloc(0x1000, 512)])


def test_seconds_of_an_older_file_have_a_spread_and_no_quartiles() -> None:
    known = {**run().as_json(), "seconds": {"median": 0.5, "spread": 0.01, "count": 20, "clock": "GPU events"}}
    found = Run.from_json(json.loads(json.dumps(known))).seconds
    assert found is not None
    assert (found.low, found.spread_words) == (None, "spread 10.0 ms, 20 steps")


def test_programs_are_told_the_quartiles_beside_the_median_and_readers_of_a_trace_how_sure_it_is() -> None:
    measured = run(seconds=Seconds(0.5, 0.01, 20, "GPU events", 0.495, 0.505))
    found = run_json(measured)
    assert [found[f"seconds{key}"] for key in ("", "_low", "_high", "_count")] == [0.5, 0.495, 0.505, 20]
    assert run_json(run(seconds=None))["seconds_low"] is None
    assert with_run(one_allocation(), measured).about.facts["step time"] == "500.0 ms ± 5.0"


ACCUMULATED = (("gradient_accumulation", {"pieces": "2"}),)


@pytest.mark.parametrize(
    ("texts", "made"),
    [
        ({}, ALONE),
        ({"gpus": "1"}, ALONE),
        ({"gpus": "8"}, Parallel(shard=8)),
        ({"gpus": "8", "tensor": "2"}, Parallel(tensor=2, shard=4)),
        ({"gpus": "8", "data": "8"}, Parallel(data=8)),
        ({"gpus": "16", "data": "2", "pipeline": "2", "tensor": "2"}, Parallel(2, 2, 2, 2)),
        ({"shard": "4", "tensor": "2"}, Parallel(shard=4, tensor=2)),
        ({"gpus": "6", "shard": "3", "data": "2"}, Parallel(data=2, shard=3)),
        ({"gpus": "8", "shard": " "}, Parallel(shard=8)),
        ({"gpus": "8", "data": "2", "offload": "cpu"}, Parallel(data=2, shard=4, offload=True)),
    ],
)
def test_what_the_others_leave_is_sharded(texts: dict[str, str], made: Parallel) -> None:
    assert parallel_of(texts) == made
    assert parallel_of(made.as_texts) == made


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({"gpus": "8", "tensor": "3"}, "gpus is 8, but 3 tensor are 3: 3 must divide it"),
        ({"gpus": "8", "shard": "4"}, "gpus is 8, but 4 shard are 4: their product must equal gpus"),
        ({"gpus": "0"}, "gpus must be a whole number from 1 to 4,096, not 0"),
        ({"tensor": "two"}, "tensor must be a whole number"),
        ({"expert": "2"}, "there is no expert"),
        ({"gpus": "2", "offload": "disk"}, "offload must be cpu, not disk"),
        ({"gpus": "2", "data": "2", "offload": "cpu"}, "set shard to 2 or more"),
        ({"data": "4096", "shard": "2"}, "8,192 GPUs exceed the limit of 4,096"),
    ],
)
def test_what_cannot_be_is_refused(texts: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parallel_of(texts)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"on": "cuda"}, "8 GPUs: 8 shard can be predicted but not measured"),
        ({"optimizations": (("split_feed_forward", {}),)}, "split_feed_forward is supported on one GPU only"),
        ({"parallel": {"tensor": "2"}, "optimizations": (("lora", {}),)}, "lora does not support tensor"),
        (
            {"parallel": {"data": "2"}, "optimizations": (("lora", {}), ("weight_quantization", {}))},
            "weight_quantization does not support data parallelism: drop it, or set data=1",
        ),
        ({"parallel": {"data": "2", "tensor": "2"}}, "set shard to 2 or more"),
        (
            {"parallel": {"pipeline": "2"}, "settings": {"batch": "2"}, "optimizations": ACCUMULATED},
            "gradient_accumulation does not support pipeline parallelism",
        ),
        (
            {"parallel": {"tensor": "2"}, "optimizations": (("chunked_cross_entropy", {}),)},
            "chunked_cross_entropy does not support tensor parallelism: drop it, or set tensor=1",
        ),
    ],
)  # fmt: skip
def test_a_plan_says_what_does_not_go_on_many(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        plan_of(Request(**{"workload": "llama", "parallel": {"gpus": "8"}, **change}))


def test_a_command_says_how_many_and_a_pipeline_has_work_for_all_stages() -> None:
    request = Request("llama", parallel={"gpus": "8", "pipeline": "4"})
    plan = plan_of(request)
    assert command_of(request).endswith("--gpus 8 --parallel pipeline=4")
    assert plan.passes == 4 and plan.describes.endswith("of 4 micro-batches, on 8 GPUs: 4 pipeline x 2 shard")
    assert "--gpus" not in command_of(Request("llama"))


def test_a_class_of_a_file_is_one_or_refused() -> None:
    one = RankClass((0, 2), 5, 8, 4, 1, "yes")
    said = json.loads(json.dumps(vars(one)))
    assert RankClass.from_json(said) == one
    wrong = ({"ranks": []}, {"ranks": ["0"]}, {"ranks": [-1]}, {"peak_reserved_bytes": 1.5}, {"fit": "<b>"})
    for change in wrong:
        with pytest.raises(TypeError):
            RankClass.from_json({**said, **change})
