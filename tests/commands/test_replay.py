"""`python -m memviz replay`: what scripts and people get from it."""

from __future__ import annotations

import pickle
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from memviz.commands import main
from memviz.results.open_trace import open as open_trace
from memviz.trace.load import load_trace
from tests.allocator.driver import MiB
from tests.facts import missing
from tests.traces import alloc, block, event, segment, snapshot, trace_of
from tests.ui import opened

SAMPLES = Path(__file__).parents[2] / "sample_traces"
OOM = SAMPLES / "out-of-memory.pickle.gz"
TRAINING = SAMPLES / "training.pickle.gz"


growing = pytest.fixture(opened.growing)


def replay(trace: Any, device: str | None = None, **how: Any) -> dict[str, Any]:
    return open_trace(trace, device=device).replay(**how).as_json()


def test_where_it_differs_it_says_why():
    a = 0x7F1200000000
    found = replay(trace_of([event("segment_alloc", a, 20 * MiB), alloc(a + MiB, 5 * MiB)], [segment(a, 20 * MiB, [])]))
    assert (found["exact"], found["address_mismatches"]) == (False, 1)
    assert found["first_mismatch"]["event"] == 1
    facts = ("segment_alloc of 20971520 at 0x7f1200000000", "alloc of 5242880 at 0x7f1200100000")
    assert missing(found["first_mismatch"]["expected"], *facts) == []
    assert "best fit" in found["first_mismatch"]["why"]


def test_every_name_in_it_is_in_the_readme(growing):
    found = replay(growing, memory=120 * MiB, overhead=0, search=True)
    readme = (SAMPLES.parent / "memviz" / "commands" / "README.md").read_text(encoding="utf-8")
    section = readme[readme.index("## replay\n") : readme.index("## report\n")]
    named = {
        name for row in re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    assert named == set(found)


def test_where_the_context_decides_it_is_close(growing):
    """156 MiB are reserved, 133 at least: they fit more easily with a context of 64 MiB than with 1,792."""
    found = {size: replay(growing, memory=size * MiB) for size in (600, 700, 2000)}
    assert [(each["oom"] is None, each["fit"]) for each in found.values()] == [
        (False, "close"),
        (True, "close"),
        (True, "yes"),
    ]
    assert found[600]["context"]["most_bytes"] == 1792 * MiB
    assert missing(found[600]["verdict"], "CUDA", "0.06", "1.75 GiB") == []
    said = replay(growing, memory=600 * MiB, overhead=550 * MiB)
    assert (said["fit"], said["context"]["least_bytes"]) == ("no", 550 * MiB)
    assert replay(growing, memory=120 * MiB, overhead=0)["context"] is None


@pytest.mark.slow
def test_as_text_it_says_where_it_ends_what_was_assumed_and_what_to_set(capsys):
    assert main(["replay", str(OOM), "--memory", "24GiB", "--settings", "max_split_size_mb:128"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("In 23.50 GiB this run fits, with 20.97 GiB to spare.")
    assert missing(said, "max_split_size_mb:128", "23.50 GiB", "24 GiB", "512 MiB") == []
    assert missing(said, "0 of", "2,384", "exact") == []
    assert missing(said, "4 GiB", "512 MiB", "fits") == []
    assert main(["replay", str(OOM), "--memory", "2400MiB", "--overhead", "0", "--search"]) == 0
    advised = capsys.readouterr().out
    assert advised.endswith("it runs out of memory.\nPYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n")
    assert missing(advised, "event 6,410", "144 MiB", "out of memory") == []
    assert "14 %" in advised
    assert main(["replay", str(OOM), "--memory", "2400MiB", "--overhead", "0"]) == 0
    assert capsys.readouterr().out.endswith("Use --search to look for settings that avoid the OOM.\n")
    assert main(["replay", str(TRAINING), "--memory", "1GiB", "--overhead", "0", "--search"]) == 0
    said = capsys.readouterr().out
    assert "  live       1,960 MiB at the peak, with any settings\n" in said
    assert " at the peak, in blocks, until out of memory\n" in said
    # No setting helps, so there is none to paste.
    assert said.endswith("the program has more live at its peak than the 1,024 MiB available.\n")


def test_where_there_is_nothing_to_replay_no_figures_of_a_replay_follow(tmp_path, capsys):
    state = tmp_path / "state.pickle"
    state.write_bytes(pickle.dumps(snapshot([], [segment(0, 20 * MiB, [block(0, 4 * MiB)])])))
    assert main(["replay", str(state), "--memory", "24GiB"]) == 0
    assert missing(capsys.readouterr().out, "Nothing to replay", "no allocation history") == []


@pytest.mark.slow
def test_a_replay_can_be_written_and_read_again_or_sent_as_a_page(tmp_path):
    path = tmp_path / "replayed.pickle"
    assert main(["replay", str(OOM), "--settings", "expandable_segments:True", "-o", str(path)]) == 0
    again = load_trace(path)
    assert again.settings["expandable_segments"] is True
    assert replay(again)["exact"]
    path = tmp_path / "what-if.html"
    assert main(["replay", str(OOM), "--memory", "2400MiB", "--overhead", "0", "--search", "-o", str(path)]) == 0
    page = path.read_text()
    assert ">In 2,400 MiB this run runs out of memory at event 6,410. <span>" in page
    assert missing(page, "expandable_segments", "fits") == []
    assert "https://" not in page


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--settings", "max_split_size_mb:2"], "CachingAllocator option max_split_size_mb too small, must be >= 20"),
        (["--settings", "nonsense:1"], "Unrecognized key 'nonsense' in CUDA allocator config."),
        (["--settings", "nonsense:1", "--release", "2.8"], "Unrecognized CachingAllocator option: nonsense"),
        (["--release", "1.0"], "torch 1.0 is not supported: use a release from 2.0 to 2.15."),
        (["--release", "2.99"], "torch 2.99 is not supported"),
        (["--release", "2.\u00b2"], "is not a release; write for example 2.8."),
        (["--settings", "expandable_segments:yes"], "Expected 'True' or 'False'"),
        (["--settings", "per_process_memory_fraction:0.5"], "give the size of the card"),
        (["--memory", "200MiB"], "has no memory left after 512 MiB"),
        (["--memory", "much"], "'much' is not a size"),
        (["--device", "7"], "has no device 7"),
        (["-o", "page.csv"], "Use .pickle for a snapshot or .html for a page"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with suppress(SystemExit):
        assert main(["replay", str(OOM), *arguments]) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_pinned_memory_has_another_allocator():
    trace = trace_of([], host_traces=[[alloc(0, 4096)]], host_segments=[])
    with pytest.raises(Exception, match="only a GPU's history can be replayed"):
        replay(trace, "host0")


def test_what_the_file_does_not_tell_of_reserved_memory_is_no_figure(capsys, tmp_path):
    """The same bytes as `summary`, and words where there are none."""
    made = [alloc(512 * i, 512) for i in range(4)]
    grown = [event("segment_alloc", 0, 2 * MiB), *made]
    for events, peak in ((made, None), (grown, 2 * MiB)):
        trace = trace_of(events)
        assert replay(trace)["recorded_peak_reserved_bytes"] == peak
        file = tmp_path / "no-segments.pickle"
        file.write_bytes(pickle.dumps(snapshot(events)))
        main(["replay", str(file)])
        said = capsys.readouterr().out
        assert ("The recording reserves 0 B" in said, "recording  0 B" in said) == (False, False)
        assert ("does not say" in said) == (peak is None)


def test_where_there_is_nothing_to_replay_json_says_nothing_of_how_it_ends():
    state = trace_of([], [segment(1 << 30, 8 << 30, [block(1 << 30, 8 << 30)])])
    only_frees = trace_of([event("free_completed", 512, 512)], [segment(0, 2 * MiB, [])])
    for trace, why in ((state, "only the final state"), (only_frees, "None of the events is an allocation.")):
        found = replay(trace, memory=4 << 30, search=True)
        assert why in found["verdict"]
        assert [found[key] for key in ("fit", "oom", "as_recorded", "smallest_card_bytes")] == [None] * 4
        assert "advice" not in found
    assert replay(state, memory=4 << 30)["peak_reserved_bytes"] is None
    assert replay(state)["peak_reserved_bytes"] == 8 << 30
