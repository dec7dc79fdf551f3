"""Would it have fitted? The recording's requests, put to a model of PyTorch's allocator under other settings."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from memviz.allocator.context import OVERHEAD_BYTES, UNKNOWN
from memviz.allocator.replay_result import Replayed, allocation_count, exactness
from memviz.allocator.replayer import CardMemory, WhatIf
from memviz.allocator.search import Search
from memviz.allocator.settings import NEWEST, OLDEST, environment_text, parse_release, parse_settings
from memviz.analysis.devices import choose_device
from memviz.commands.command import (
    Command,
    add_device,
    add_file,
    add_json,
    byte_count,
    open_trace,
    option,
    percent,
    print_json,
    print_table,
    printable,
    shown_progress,
)
from memviz.errors import UsageError
from memviz.results.replay import Replay, ReplayQuestion, replay_result
from memviz.results.replay_headline import replay_headline
from memviz.trace.write import replacing, write_pickle
from memviz.ui.what_if.saved_page import what_if_page
from memviz.ui.what_if.verdict import about_ranked_rows, ranked_rows
from memviz.units import bytes_text, count_text, percent_text

_SNAPSHOT = ("pickle", "pkl")


def _print(replay: Replay, overhead: int) -> None:
    outcome, searched, replayed = replay.found, replay.searched, replay.found.replayed
    print(replay_headline(outcome, searched))
    if not allocation_count(outcome.recorded):
        return
    print(f"\nDevice {replay.device.name}, {printable(replayed.trace.about.label)}{_card_text(outcome.card)}")
    live = max(replayed.peak_requested_bytes, outcome.recorded.peak_requested_bytes)
    until = ", until out of memory" if replayed.oom else ""
    # Where the recording goes on, it tells what the replay did not come to.
    of_replay = until if live == replayed.peak_requested_bytes else ""
    print(f"  live       {bytes_text(live)} at the peak, with any settings{of_replay}")
    allocated, unused = bytes_text(replayed.peak_allocated_bytes), bytes_text(replayed.unused_at_peak_bytes)
    print(f"  allocated  {allocated} at the peak, in blocks{until}")
    share = percent_text(replayed.unused_at_peak_bytes, replayed.peak_reserved_bytes)
    reserved, end = bytes_text(replayed.peak_reserved_bytes), bytes_text(replayed.reserved_end_bytes)
    print(f"  reserved   {reserved} at its peak, {unused} ({share}) above the allocated peak; {end} at the end")
    _print_recorded(outcome)
    print(f"  retries    {count_text(replayed.retries)}")
    if replayed.oom is not None:
        _print_oom(replayed)
    if outcome.context is not None:
        print(f"  context    {outcome.context.interval} in addition, {outcome.context.source}")
    fits_on = "no listed card"
    if outcome.smallest_card is not None:
        set_aside = f", {bytes_text(overhead)} set aside" if overhead else ""
        is_tight = outcome.smallest_card.usable_bytes < replayed.peak_reserved_bytes
        released = "; on the smallest, cached memory is released where there is no room" if is_tight else ""
        fits_on = f"cards of {outcome.smallest_card.name} or more{set_aside}{released}"
    print(f"  fits on    {fits_on}")
    exact = exactness(outcome.recorded)
    print(f"\n{exact[0].upper()}{exact[1:]}.".replace("..", "."))
    for note in replayed.trace.notes:
        print(f"{'!' if note.level == 'warning' else '-'} {printable(note.text)}")
    if searched is not None:
        _print_search(outcome, searched)
    elif replayed.oom is not None:
        print("\nUse --search to look for settings that avoid the OOM.")


def _print_recorded(outcome: WhatIf) -> None:
    """The recording, and the recorded settings as they were replayed, where these are not one."""
    if not (outcome.divergence or outcome.why_not_as_recorded):
        return
    recorded = f"{bytes_text(outcome.recorded_peak_bytes)} reserved at its peak"
    print(f"  recording  {recorded if outcome.knows_recorded_peak else 'reserved memory is not in the file'}")
    if outcome.compared_with is not outcome.replayed:
        other = outcome.compared_with
        until = "until out of memory" if other.oom else "at its peak"
        print(f"  recorded settings, replayed: {bytes_text(other.peak_reserved_bytes)} reserved {until}")


def _card_text(card: CardMemory | None) -> str:
    if card is None:
        return ", no memory limit"
    usable = bytes_text(card.usable_bytes)
    if not card.overhead_bytes:
        return f", in {usable}"
    source = "an assumption" if card.overhead_bytes == OVERHEAD_BYTES else "as given"
    overhead = f"{bytes_text(card.overhead_bytes)} are set aside for the CUDA context and libraries, {source}"
    return f", in {usable} of a card of {card.name}: {overhead}"


def _print_oom(replayed: Replayed) -> None:
    oom = replayed.oom
    assert oom is not None
    when = f"at event {count_text(oom.event)}" if oom.event >= 0 else "before the first event"
    requested, segment = bytes_text(oom.requested_bytes), bytes_text(oom.asked_of_device_bytes)
    live, cached = bytes_text(oom.allocated_bytes), bytes_text(oom.reserved_bytes - oom.allocated_bytes)
    print(f"  out of memory {when}: {requested} requested, needs {segment} from the device")
    print(f"             {live} allocated, {cached} cached")


def _print_search(outcome: WhatIf, searched: Search) -> None:
    card = outcome.card
    cells = [[row.reserved, row.retries, row.ends, row.fits_on, row.called] for row in ranked_rows(outcome, searched)]
    where = f"in {bytes_text(card.usable_bytes)}" if card else "end"
    print(f"\n{about_ranked_rows(outcome, searched)}")
    print_table(["reserved", "retries", where, "smallest card", "settings"], cells, number_columns=4)
    print(f"\n{searched.advice}")
    if not searched.advised.is_recorded and searched.advised.fits:
        print(environment_text(searched.advised.text))


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_file(parser)
    parser.add_argument(
        "--settings", metavar="TEXT",
        help="allocator settings, as in PYTORCH_CUDA_ALLOC_CONF (default: those of the recording)",
    )  # fmt: skip
    parser.add_argument(
        "--memory", type=byte_count, metavar="SIZE", help="memory of the card, such as 24GiB (default: no limit)"
    )
    parser.add_argument(
        "--overhead",
        type=byte_count,
        default=OVERHEAD_BYTES,
        metavar="SIZE",
        help="memory of the card for the CUDA context and libraries (default: "
        f"{bytes_text(OVERHEAD_BYTES)}, an assumption; measured: {UNKNOWN.interval}, by GPU generation)",
    )
    parser.add_argument(
        "--release", type=option(partial(parse_release, oldest=OLDEST, newest=NEWEST)), default=NEWEST, metavar="2.N",
        help="PyTorch release of the settings",
    )  # fmt: skip
    parser.add_argument("--search", action="store_true", help="also try other settings and recommend one")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write the replay as a snapshot (.pickle) or a page (.html)"
    )
    add_device(parser)
    add_json(parser)


def _run(args: argparse.Namespace) -> int:
    question = ReplayQuestion(
        settings=None if args.settings is None else parse_settings(args.settings, args.release),
        card=None if args.memory is None else CardMemory(args.memory, args.overhead),
        release=args.release,
        search=args.search,
        overhead=args.overhead,
    )
    trace = open_trace(args.file)
    with shown_progress(lambda *parts: f"Replaying {percent(*parts)}") as show:
        result = replay_result(trace, choose_device(trace, args.device), question, show)
    if args.output:
        _write(result, args.output)
    print_json(result.as_json()) if args.json else _print(result, args.overhead)
    return 0


def _write(replay: Replay, path: Path) -> None:
    ending = path.name.removesuffix(".gz").rpartition(".")[2].lower()
    if ending not in (*_SNAPSHOT, "html"):
        raise UsageError(f"{path.name}: unsupported format. Use .pickle for a snapshot or .html for a page.")
    with replacing(path) as file:
        if ending in _SNAPSHOT:
            write_pickle(replay.trace, file)
        else:
            page = what_if_page(replay.recording, replay.device, replay.found, replay.searched)
            file.write(page.encode("utf-8", "replace"))


COMMANDS = {"replay": Command(_add_arguments, _run)}
