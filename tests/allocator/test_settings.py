"""The text of PYTORCH_CUDA_ALLOC_CONF. Refusals were compared with torch 2.13's own on 80,000 random texts."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.allocator.settings import (
    Settings,
    parse_settings,
    settings_from_environment,
    settings_from_snapshot,
    settings_of,
)
from memviz.errors import UsageError
from memviz.trace.model import Trace
from tests.allocator.recording import Recorder
from tests.replays import replay
from tests.traces import read

MiB = 1 << 20


def test_everything_that_moves_device_memory_is_read():
    text = (
        "expandable_segments:True,large_segment_size_mb:32,max_split_size_mb:128,max_non_split_rounding_mb:64,"
        "roundup_power2_divisions:4,garbage_collection_threshold:0.6,per_process_memory_fraction:0.5,"
        "throw_on_cudamalloc_oom:True,graph_capture_record_stream_reuse:True,expandable_segments_reserve:40G"
    )
    assert parse_settings(text) == Settings(
        expandable_segments=True,
        large_segment_size=32 * MiB,
        max_split_size=128 * MiB,
        max_non_split_rounding_size=64 * MiB,
        roundup_power2_divisions=(4,) * 16,
        garbage_collection_threshold=0.6,
        per_process_memory_fraction=0.5,
        throw_on_cudamalloc_oom=True,
        graph_capture_record_stream_reuse=True,
        expandable_segments_reserve="40G",
    )


def test_what_concerns_pinned_memory_and_locks_is_kept_as_written():
    text = "release_lock_on_cudamalloc:True,pinned_num_register_threads:8,pinned_use_background_threads:False"
    settings = parse_settings(text)
    assert settings.to_text() == text
    assert settings == replace(Settings(), others=settings.others)


@pytest.mark.parametrize(
    "text",
    [
        "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128",
        "export PYTORCH_ALLOC_CONF='max_split_size_mb:128'",
        'PYTORCH_HIP_ALLOC_CONF = "max_split_size_mb:128"',
        " max_split_size_mb : 128 ,",
    ],
)
def test_the_variables_name_and_blanks_may_stand_around_it(text):
    assert parse_settings(text) == Settings(max_split_size=128 * MiB)


def test_the_oldest_variable_wins():
    both = {"PYTORCH_ALLOC_CONF": "max_split_size_mb:30", "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:40"}
    assert settings_from_environment(both).max_split_size == 40 * MiB


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("foo:1", "Unrecognized key 'foo' in CUDA allocator config."),
        ("max_split_size_mb:2", "CachingAllocator option max_split_size_mb too small, must be >= 20"),
        ("large_segment_size_mb:10", "CachingAllocator option large_segment_size_mb must be > 10 MB"),
        (
            "max_split_size_mb:30,large_segment_size_mb:40",
            "CachingAllocator option max_split_size_mb too small, must be >= 40",
        ),
        ("garbage_collection_threshold:1.2", "garbage_collect_threshold is invalid, set it in (0.0, 1.0)"),
        ("garbage_collection_threshold:0", "garbage_collect_threshold is invalid, set it in (0.0, 1.0)"),
        ("roundup_power2_divisions:3", "For roundups, the divisions has to be power of 2 "),
        ("roundup_power2_divisions:[3:4]", "For roundups, the intervals have to be power of 2 "),
        (
            "expandable_segments:true",
            "Expected 'True' or 'False' at index 2 in ConfigTokenizer but got 'true'",
        ),
        ("max_split_size_mb:many", "'many' is not a whole number (PyTorch stops with 'stoull')."),
        ("max_split_size_mb:", "The settings end after ':', where PyTorch expects more."),
        ("roundup_power2_divisions:[4:4", "The settings end after '4', where PyTorch expects more."),
        ("backend:jemalloc", "Unknown allocator backend, options are native and cudaMallocAsync"),
        (
            "pinned_num_register_threads:1024",
            "Number of register threads should be less than or equal to 128, got 1024",
        ),
        ("pinned_num_register_threads:3", "Number of register threads has to be power of 2, got 3"),
        (("large_segment_size_mb:40", (2, 8)), "Unrecognized CachingAllocator option: large_segment_size_mb"),
        (("max_split_size_mb=128", (2, 8)), "Unrecognized CachingAllocator option: max_split_size_mb=128"),
        (("expandable_segments:yes", (2, 8)), "Expected a single True/False argument for expandable_segments"),
        (("max_split_size_mb,128", (2, 8)), "Error parsing CachingAllocator settings, expected :"),
        (("max_split_size_mb:3000000000", (2, 8)), "'3000000000' is too large a number (PyTorch stops with 'stoi')."),
    ],
)
def test_what_pytorch_refuses_is_refused_in_its_words(text, message):
    text, release = text if isinstance(text, tuple) else (text, None)
    with pytest.raises(UsageError) as caught:
        parse_settings(text, *filter(None, [release]))
    assert str(caught.value) == message


def test_the_rest_of_the_list_begins_at_the_last_interval_before_2_9_and_after_it_since():
    text = "roundup_power2_divisions:[64:8,256:4,>:1]"
    lower, middle = (8,) * 7, (0,)
    assert parse_settings(text, (2, 8)).roundup_power2_divisions == lower + middle + (1,) * 8
    assert parse_settings(text, (2, 9)).roundup_power2_divisions == lower + middle + (4,) + (1,) * 7


def test_a_reserve_is_a_share_of_the_card_or_gibibytes_and_never_more_than_the_default():
    card = 80 << 30
    reserves = [parse_settings(f"expandable_segments_reserve:{each}").address_space(card) for each in ("0.5", "40G")]
    assert reserves == [40 << 30, 40 << 30]
    assert parse_settings("expandable_segments_reserve:1e20G").address_space(card) == 90 << 30
    assert parse_settings("expandable_segments_reserve:much").address_space(card) == 90 << 30


def test_a_snapshots_values_win_and_its_text_fills_the_rest():
    recorded = {
        "PYTORCH_CUDA_ALLOC_CONF": "large_segment_size_mb:32,max_split_size_mb:64,expandable_segments:False",
        "max_split_size": 128 * MiB,
        "expandable_segments": True,
        "garbage_collection_threshold": 0.5,
        "roundup_power2_divisions": {str(1 << slot): 4 if slot == 9 else 0 for slot in range(16)},
    }
    expected = parse_settings(
        "expandable_segments:True,large_segment_size_mb:32,max_split_size_mb:128,"
        "roundup_power2_divisions:[256:0,512:4,>:0],garbage_collection_threshold:0.5"
    )
    assert settings_from_snapshot(recorded) == expected


def test_damaged_settings_of_a_snapshot_are_left_aside():
    recorded = {
        "PYTORCH_CUDA_ALLOC_CONF": "nonsense",
        "max_split_size": "big",
        "expandable_segments": 1,
        "roundup_power2_divisions": {"1": "x", 2: 4},
    }
    assert settings_from_snapshot(recorded) == Settings()


any_settings = st.builds(
    Settings,
    expandable_segments=st.booleans(),
    max_split_size=st.none() | st.integers(64, 4096).map(lambda number: number * MiB),
    large_segment_size=st.integers(11, 64).map(lambda number: number * MiB),
    max_non_split_rounding_size=st.integers(64, 4096).map(lambda number: number * MiB),
    roundup_power2_divisions=st.tuples(*[st.sampled_from([0, 1, 2, 4, 8])] * 16) | st.just((4,) * 16),
    garbage_collection_threshold=st.sampled_from([0.0, 0.25, 0.8]),
    per_process_memory_fraction=st.sampled_from([1.0, 0.0, 0.9]),
    throw_on_cudamalloc_oom=st.booleans(),
)


@given(any_settings)
def test_what_is_written_is_read_back(settings):
    assert parse_settings(settings.to_text()) == settings


# -- under which settings a recording was made, where the file does not say or says it wrongly


def recorded(text: str, settings: dict[str, object] | None, last: int | None = None) -> Trace:
    run = Recorder(text)
    block = run.malloc(30 * MiB)
    run.malloc(60 * MiB)
    run.free(block)
    run.malloc(5 * MiB)
    snapshot = run.snapshot(last)
    snapshot["allocator_settings"] = settings or {}
    return read(snapshot)


@pytest.mark.parametrize("settings", [None, {"expandable_segments": False, "PYTORCH_CUDA_ALLOC_CONF": ""}])
@pytest.mark.parametrize("last", [None, 4, 0])
def test_pages_that_were_mapped_say_that_segments_expanded(settings, last):
    trace = recorded("expandable_segments:True", settings, last)
    found, inferred = settings_of(trace, trace.devices[0])
    assert (found.expandable_segments, inferred) == (True, True)
    result = replay(trace)
    assert result.exact
    assert result.trace.notes[0].code == "settings_inferred"


@pytest.mark.parametrize(
    ("text", "settings", "expands"),
    [("expandable_segments:True", {"expandable_segments": True}, True), ("", None, False)],
    ids=["named in the file", "whole segments"],
)
def test_where_the_file_tells_nothing_is_inferred(text, settings, expands):
    trace = recorded(text, settings)
    found, inferred = settings_of(trace, trace.devices[0])
    assert (found.expandable_segments, inferred) == (expands, False)


def test_frees_that_waited_for_another_stream_are_named_where_that_matters():
    run = Recorder()
    block = run.malloc(30 * MiB)
    run.allocator.record_stream(block, 7)
    run.free(block)
    run.malloc(5 * MiB)
    run.allocator.pending.finish(7)
    run.malloc(5 * MiB)
    assert replay(run.trace()).trace.notes == run.trace().notes
    codes = [note.code for note in replay(run.trace(), memory=400 * MiB).trace.notes]
    assert codes[-1] == "streams_as_recorded"
