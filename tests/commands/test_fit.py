"""`python -m memviz fit`, with real predictions of a small model."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memviz.commands import FAILED, main
from memviz.commands import fit as fit_command
from memviz.runner.fit import search as fit_search
from memviz.runner.fit import space

pytestmark = pytest.mark.slow

# Two tensors of the inner width are more than a T4 has, slices of them are not.
TIGHT = ["feed_forward", "--set", "batch=1", "--set", "sequence=460000", "--set", "dim=1024", "--set", "layers=1"]
EASY = ["feed_forward", "--set", "batch=1", "--set", "sequence=4000", "--set", "dim=1024", "--set", "layers=1"]

Asked = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def few_options(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {**space._OPTIONS, "split_feed_forward": ({"splits": "4"},), "layerwise_casting": ({},)}
    options |= {"weight_offload": ({"granularity": "leaf"},), "weight_quantization": ({},)}
    monkeypatch.setattr(space, "_OPTIONS", options)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of predictions that the tests share."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def fit(cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Asked:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))

    def asked(*arguments: str) -> dict[str, Any]:
        assert main(["fit", *arguments, "--card", "T4", "--processes", "1", "--json"]) == 0
        answer: dict[str, Any] = json.loads(capsys.readouterr().out)
        return answer

    return asked


def test_the_cheapest_way_that_fits_and_its_command_says_the_same(
    fit: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = fit(*TIGHT)
    chosen = answer["chosen"]
    assert chosen["optimizations"]
    assert chosen["fits"] and chosen["keeps"] == "outputs"
    assert chosen["peak_reserved_bytes"] <= answer["usable_bytes"]
    # The allocator's settings, two ways to cut the feed-forward and weights on the host, each with each.
    # The model has no attention and is no autoencoder, so what changes those is tried alone, twice and once, and in
    # everything at once, which comes second.
    assert (answer["tried"], answer["of"]) == (2 * 3 * 2 + 2 + 1 + 1, 2 * 3 * 2 + 2 + 1 + 1)
    by_cost = [way["cost"]["seconds_low"] + way["cost"]["seconds_high"] for way in answer["front"]]
    peaks = [way["peak_reserved_bytes"] for way in answer["front"]]
    assert by_cost == sorted(by_cost) and peaks == sorted(peaks, reverse=True)
    assert next(way for way in answer["front"] if way["fits"]) == chosen
    command = shlex.split(chosen["command"])
    assert main([*command[3:], "--json"]) == 0
    run = json.loads(capsys.readouterr().out)
    assert run["peak_reserved_bytes"] == chosen["peak_reserved_without_limit_bytes"]
    assert run["run"]["fit"]["peak_reserved_bytes"] == chosen["peak_reserved_bytes"]


def test_every_configuration_is_listed_where_asked(fit: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    answer = fit(*TIGHT, "--all")
    assert len(answer["ways"]) == answer["tried"] - answer["refused"]["count"] > len(answer["front"])
    assert all(way in answer["ways"] for way in answer["front"])
    assert main(["fit", *TIGHT, "--card", "T4", "--processes", "1", "--all"]) == 0
    words = capsys.readouterr().out
    assert all(f"  {way['label']}\n" in words for way in answer["ways"])


def test_a_search_predicts_for_the_platform_that_was_named(fit: Asked) -> None:
    command = shlex.split(fit(*EASY, "--tries", "1", "--platform", "windows")["chosen"]["command"])
    assert command[command.index("--platform") + 1] == "windows"


def test_the_largest_batch_runs_and_the_next_does_not(fit: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    answer = fit(*EASY, "--largest", "batch")
    assert answer["chosen"]["optimizations"] == []
    largest = answer["largest"]
    assert largest["knob"] == "batch" and largest["next_fails"] and largest["predictions"] <= 8
    fits = []
    for value in (largest["value"], largest["value"] + 1):
        run = ["run", "feed_forward", "--set", f"batch={value}", "--set", "sequence=4000", "--set", "dim=1024"]
        more = ["--set", "layers=1", "--card", "T4", "--on", "predict", "--no-numerics", "--json"]
        assert main([*run, *more]) == 0
        fits.append(json.loads(capsys.readouterr().out)["run"]["fit"]["fits"])
    assert fits == [True, False]


def test_where_nothing_fits_it_says_so_and_what_comes_nearest(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    # Its input alone is more than a T4 has. As many tokens as above: what slices them makes as many slices.
    huge = [*TIGHT[:5], "--set", "dim=10240", *TIGHT[7:]]
    assert main(["fit", *huge, "--card", "T4", "--processes", "1"]) == 0
    words = capsys.readouterr().out
    assert words.startswith("No configuration tried fits in the 14.49 GiB usable on")
    assert "The smallest is " in words
    assert "`--keep training` allows more changes." in words


BROKEN = """
from torch import nn, randn

class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        raise ValueError("broken here")

def make():
    return Broken(), randn(2, 8)
"""


def test_where_no_way_runs_it_is_an_error_with_the_reason_and_nothing_about_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    asked = ["fit", f"{tmp_path / 'broken.py'}:make", "--card", "T4", "--processes", "1"]
    assert main(asked) == FAILED
    said = capsys.readouterr()
    assert said.out == "" and "could be predicted. broken here" in said.err
    assert main([*asked, "--json"]) == FAILED
    answer = json.loads(capsys.readouterr().out)
    assert answer["refused"]["count"] == answer["tried"] and answer["refused"]["reasons"][0] == "broken here"


def test_a_value_that_the_model_refuses_is_not_said_to_need_memory(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setattr(space, "OPTIMIZATIONS", ())
    asked = ["fit", "gpt2", "--largest", "sequence", "--card", "H200", "--processes", "1"]
    for knob in ("layers=1", "batch=1", "mode=inference"):
        asked += ["--set", knob]
    assert main(asked) == 0
    assert "is 1,024; 1,025 is refused: sequence is 1025; GPT-2 knows 1024 positions.\n" in capsys.readouterr().out
    assert main([*asked, "--json"]) == 0
    largest = json.loads(capsys.readouterr().out)["largest"]
    assert largest["next_fails"] and largest["next_refused"] == "sequence is 1025; GPT-2 knows 1024 positions."


def test_gpus_are_parted_in_every_way_and_the_command_makes_the_same_run(
    fit: Asked, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(space, "OPTIMIZATIONS", ())
    small = ["llama", "--set", "layers=2", "--set", "sequence=64", "--set", "batch=1", "--set", "mode=training"]
    answer = fit(*small, "--gpus", "2")
    assert answer["tried"] == 5
    parallel = [way["parallel"] for way in answer["front"]]
    assert {"tensor": 2} in parallel
    way = answer["front"][parallel.index({"tensor": 2})]
    assert (way["label"], way["settings"]["batch"]) == ("2 tensor", "2") and way["cost"]["link_bytes"]
    command = shlex.split(way["command"])
    assert main([*command[3:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["peak_reserved_bytes"] == way["peak_reserved_without_limit_bytes"]


def test_each_class_has_a_front_of_its_own(fit: Asked) -> None:
    answer = fit(*EASY, "--keep", "nothing")
    assert list(answer["fronts"]) == ["outputs", "training", "nothing"]
    for keep, front in answer["fronts"].items():
        assert {way["keeps"] for way in front} <= {keep}
    assert answer["fronts"]["nothing"]
    # Configurations that keep the outputs come first, even if another would be cheaper.
    assert answer["chosen"]["keeps"] == "outputs"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonesuch"], "There is no workload nonesuch."),
        (["ltx_video", "--largest", "sequence"], "ltx_video has no knob sequence to enlarge. There is batch."),
        (["feed_forward", "--card", "Voodoo 2"], "Unknown card 'Voodoo 2'."),
    ],
)
def test_what_is_wrong_is_said(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", *arguments]) == FAILED
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(("fault", "status"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_a_search_that_is_stopped_prints_what_it_found(
    fault: BaseException, status: int, fit: Asked, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(*EASY)
    told, progress = 0, fit_command.progress

    def stop_at_the_third(text: str) -> None:
        nonlocal told
        told += bool(text)
        if text and told == 3:
            raise fault
        progress(text)

    monkeypatch.setattr(fit_command, "progress", stop_at_the_third)
    asked = ["fit", *EASY, "--card", "T4", "--processes", "1"]
    assert main(asked) == status
    said = capsys.readouterr()
    assert " fits in the 14.49 GiB" in said.out and ", chosen" in said.out
    assert re.search(r"Stopped by .*\. 3 of \d+ configurations were tried; others may be better\.", said.out)
    assert "Run the same command again" in said.out
    # Without a terminal there are plain lines, and few.
    assert 1 <= said.err.count("configurations tried") <= 3 and "\r" not in said.err
    told = 0
    assert main([*asked, "--json", "--largest", "batch"]) == status
    said = capsys.readouterr()
    answer = json.loads(said.out)
    assert answer["tried"] == 3 < answer["planned"] and answer["stopped"]
    assert answer["chosen"] and answer["largest"] is None
    assert "memviz: Stopped by " in said.err


def test_a_limit_of_time_or_tries_ends_the_search_with_what_it_found(
    fit: Asked, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = fit(*EASY, "--tries", "4")
    # What is refused counts as no try.
    assert answer["tried"] - answer["refused"]["count"] == 4
    assert (answer["planned"], answer["stopped"]) == (answer["tried"], None)
    now = [0.0]

    class LateClock:
        """The time is over once the search has begun."""

        @staticmethod
        def monotonic() -> float:
            now[0] += 1.0
            return now[0]

    monkeypatch.setattr(fit_search, "time", LateClock)
    limited = ("--time-limit", "2", "--largest", "batch", "--card", "T4", "--processes", "1", "--json")
    assert main(["fit", *EASY, *limited]) == 0
    said = capsys.readouterr()
    answer = json.loads(said.out)
    assert answer["stopped"] == "time limit" and answer["largest"] is None
    assert "memviz: Stopped by --time-limit." in said.err


def test_a_card_can_be_stated_by_its_memory(fit: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["fit", *EASY, "--tries", "1", "--processes", "1", "--json"]
    assert main([*asked, "--memory", "48GiB"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert (alone["card"], alone["card_bytes"]) == ("a card of 48 GiB", 48 << 30)
    assert alone["chosen"]["cost"]["seconds_low"] is None
    assert "--memory 48GiB" in alone["chosen"]["command"] and "--card" not in alone["chosen"]["command"]
    assert main([*asked, "--card", "T4", "--memory", "48GiB"]) == 0
    other = json.loads(capsys.readouterr().out)
    assert (other["card"], other["card_bytes"]) == ("Tesla T4 with 48 GiB", 48 << 30)
    assert other["chosen"]["cost"]["seconds_low"] is not None
    # What is set aside is the card's own where it is named, and else the most of any.
    assert other["usable_bytes"] > alone["usable_bytes"]
    for card, has_seconds in (((), False), (("--card", "T4"), True)):
        assert main([*asked[:-1], *card, "--memory", "48GiB"]) == 0
        said = capsys.readouterr().out
        assert ("Seconds are" in said) is (" estimated " in said) is has_seconds
