"""Headline of the variants of a run: what the best one saves and costs; and names of its ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from memviz.allocator.context import communicators_of
from memviz.predictor.expected_error import Fit
from memviz.results.device_bill import DeviceBill, estimated_bill
from memviz.results.headline import Headline, consecutive_spans
from memviz.runner.jobs.service import Variant
from memviz.runner.request import MOST_NAMED, RankClass, Run, Seconds
from memviz.units import bytes_text, bytes_texts, count_text, percent_text


def gpus_of(run: Run) -> int:
    return sum(len(one.ranks) for one in run.classes) or 1


def rank_text(run: Run) -> str:
    """Return 'rank 3 of 8, the fullest', or nothing for one GPU."""
    count = gpus_of(run)
    if run.rank is None or count == 1:
        return ""
    equal = len(run.classes) == 1
    return f"rank {count_text(run.rank)} of {count_text(count)}, {'all equal' if equal else 'the highest'}"


def location_text(run: Run) -> str:
    """' on each of 8 GPUs', ' on rank 3, the fullest of 8 GPUs'; nothing of one."""
    count = gpus_of(run)
    if run.rank is None or count == 1:
        return ""
    if len(run.classes) == 1:
        return f" on each of {count_text(count)} GPUs"
    return f" on rank {count_text(run.rank)}, the highest of {count_text(count)} GPUs"


def rank_class_text(ranks: RankClass, shown_rank: int | None) -> str:
    live, reserved = bytes_text(ranks.peak_allocated_bytes), bytes_text(ranks.peak_reserved_bytes)
    mark = ", shown above" if ranks.predicted_rank == shown_rank else ""
    return f"{rank_list(ranks.ranks)}: live {live}, reserved {reserved}{mark}"


def rank_list(ranks: Sequence[int]) -> str:
    """'ranks 0 to 6, 8', or with a distance: 'ranks 0, 4, ... 28'."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    spans = consecutive_spans(ranks)
    distances = {after - before for before, after in pairwise(ranks)}
    if len(spans) > 3 and len(distances) == 1:
        return f"ranks {ranks[0]}, {ranks[1]}, ... {ranks[-1]}"
    parts = (
        f"{first} to {last}" if last - first > 1 else ", ".join(map(str, range(first, last + 1)))
        for first, last in spans
    )
    return f"ranks {', '.join(parts)}"


def base_of(variants: Sequence[Variant], number: int) -> int:
    """Return the baseline of a variant: the same workload with nothing switched on, or else the first."""
    if not any(variant.request.optimizations for variant in variants):
        return 0
    settings = variants[number].request.settings
    plain = (at for at, variant in enumerate(variants) if not variant.request.optimizations)
    return next((at for at in plain if variants[at].request.settings == settings), 0)


OPTIMIZERS = {
    "none": "no optimizer",
    "sgd": "SGD",
    "adamw": "AdamW",
    "adamw-fused": "fused AdamW",
    "adamw-for-loop": "AdamW, one parameter at a time",
}


@dataclass(frozen=True)
class RunHeadline:
    headline: Headline
    number: int


def variants_headline(variants: Sequence[Variant]) -> RunHeadline:
    """Return the headline of the runs finished by now; the baseline is the first."""
    finished = [number for number, variant in enumerate(variants) if variant.run is not None]
    for number in finished:
        bad = variants[number].run
        if bad is not None and is_bug(bad):
            verdict = (bad.numerics or {}).get("verdict", {})
            reason = f"It {verdict['finding']}" if verdict.get("finding") else f"{verdict.get('words', '')}."
            return RunHeadline(
                Headline(f"{variants[number].label} changes the outputs more than it claims.", reason), number
            )
    if not finished:
        failed = [variant for variant in variants if variant.state == "failed"]
        return RunHeadline(_failure_headline(failed), 0)
    pairs = list(_pairs(variants))
    first = variants[finished[0]].run
    if not pairs and first is not None:
        return RunHeadline(_with_host(_single_run(first), first), finished[0])
    pressed = [pair for pair in pairs if pair.base.fit is not None and not fits(pair.base)]
    others_fit = any(variant.run is not None and fits(variant.run) for variant in variants)
    best = _fitting_variant(pressed, others_fit=others_fit) if pressed else _best_saving(pairs)
    return replace(best, headline=_with_host(best.headline, variants[best.number].run))


def fits(run: Run) -> bool:
    """Return whether a run fits its card, and the host where its memory was given."""
    return run.fit is not None and run.fit.fits and run.fits_host is not False


def _short(label: str) -> str:
    """Return a label with at most two optimizations by name."""
    parts = label.split(" + ")
    more = len(parts) - MOST_NAMED
    return label if more <= 0 else f"{' + '.join(parts[:MOST_NAMED])} and {more} more"


def _failure_headline(failed: Sequence[Variant]) -> Headline:
    if not failed:
        return Headline("")
    message = failed[0].phase.split("\n")[0]
    return Headline("Not run.", message) if failed[0].what == "refused" else Headline(message)


def _best_saving(pairs: Sequence[_Pair]) -> RunHeadline:
    best = max(pairs, key=lambda pair: pair.saved / pair.base.peak_reserved_bytes)
    if best.saved <= 0:
        reserves = f"the baseline reserves {bytes_text(best.base.peak_reserved_bytes)}"
        return RunHeadline(
            Headline(f"No variant saves memory: {reserves}{_with_any_optimizer(best.base)}."), best.base_number
        )
    share = percent_text(best.saved, best.base.peak_reserved_bytes)
    of = f"of reserved memory{location_text(best.run)}{_with_any_optimizer(best.base)}"
    answer = f"{_short(best.label)} saves {bytes_text(best.saved)}, {share} {of}."
    cost = _cost_clause(best.base, best.run)
    return RunHeadline(Headline(answer, f"It costs{cost.removeprefix(' for')}." if cost else ""), best.number)


def is_training(run: Run) -> bool:
    return step_word(run) == "step"


def optimizer_text(run: Run) -> str:
    """Return the optimizer of a training step; empty for a forward pass, which has none."""
    return OPTIMIZERS.get(run.request.optimizer, run.request.optimizer) if is_training(run) else ""


def with_optimizer(run: Run) -> str:
    """ ", with AdamW": what fits without an optimizer may not with one."""
    optimizer = optimizer_text(run)
    return f", with {optimizer}" if optimizer else ""


def _with_any_optimizer(run: Run) -> str:
    """Return the optimizer, or nothing without one: without a claim that it fits, that need not be said."""
    return with_optimizer(run) if run.request.optimizer != "none" else ""


def peak_text(run: Run) -> str:
    """ "at the peak", with its moment where that is none of a step."""
    return "at the peak, while loading" if run.peak_while_loading else "at the peak"


def reserved_on_card(run: Run) -> int | None:
    """Return peak reserved on a card where the run fits only as cached memory is released; else None."""
    fit = run.fit
    return fit.peak_reserved_bytes if fit and fit.fits and fit.peak_reserved_bytes < run.peak_reserved_bytes else None


def reserved_bytes(run: Run) -> int:
    """Peak of what is reserved: on the card where it fits there, else without a limit."""
    squeezed = reserved_on_card(run)
    return run.peak_reserved_bytes if squeezed is None else squeezed


@dataclass(frozen=True)
class _Pair:
    number: int
    base_number: int
    base_label: str
    label: str
    base: Run
    run: Run

    @property
    def saved(self) -> int:
        return self.base.peak_reserved_bytes - self.run.peak_reserved_bytes


def _pairs(variants: Sequence[Variant]) -> Iterator[_Pair]:
    for number, variant in enumerate(variants):
        at = base_of(variants, number)
        base = variants[at].run
        if at != number and base is not None and base.peak_reserved_bytes and variant.run is not None:
            yield _Pair(number, at, variants[at].label, variant.label, base, variant.run)


def bill_of_run(run: Run) -> DeviceBill:
    """Return the bill of the rank that reserves most."""
    return estimated_bill(reserved_bytes(run), run.mode, run.device, communicators_of(run.provenance))


def host_sizes(run: Run) -> str:
    """Return `8 × 2.00 GiB of 64.00 GiB`; empty where the host's memory was not given, or nothing is known."""
    if run.host_peak_bytes is None or not run.request.host_memory_bytes:
        return ""
    processes = run.request.processes_of_machine
    times = f"{count_text(processes)} × " if processes > 1 else ""
    return f"{times}{' of '.join(map(bytes_text, (run.host_peak_bytes, run.request.host_memory_bytes)))}"


def _with_host(headline: Headline, run: Run | None) -> Headline:
    """Add that a run does not fit the host."""
    if run is None or run.fits_host is not False:
        return headline
    return headline.and_also(f"It does not fit in host memory: {host_sizes(run)}.")


def host_text(run: Run) -> str:
    """Describe host memory: what is pinned, or whether it fits the machine's, where that was given."""
    pinned = f"{bytes_text(run.pinned_host_bytes)} pinned" if run.pinned_host_bytes else ""
    sizes = host_sizes(run)
    fits = f"{'fits' if run.fits_host else 'does not fit'}: {sizes}" if sizes else ""
    return ", ".join(filter(None, (fits, pinned)))


def step_word(run: Run) -> str:
    return "forward pass" if "forward pass" in run.window else "step"


def _single_run(run: Run) -> Headline:
    where = location_text(run)
    loading = ", while loading" if run.peak_while_loading else ""
    peak = f"{bytes_text(run.peak_reserved_bytes)} at the peak{loading}"
    first = f"This {step_word(run)} reserves {peak}{where}{_with_any_optimizer(run)}."
    if run.fit is None:
        return Headline(first)
    squeezed = reserved_on_card(run)
    usable, less = bytes_texts(run.fit.usable_bytes, squeezed or 0)
    # Said once: where there is an optimizer, the first sentence names it.
    optimizer = with_optimizer(run) if run.request.optimizer == "none" else ""
    if squeezed is not None and run.fit.word != "close":
        first = f"Without a limit this {first.removeprefix('This ')}"
        less = f"where cached memory is released and {less} are reserved"
        return Headline(first, f"It fits in {usable}{optimizer}, {less}.")
    if run.fit.word == "close":
        return Headline(first, f"Close{optimizer}: {close_fit_text(run)}.")
    fits = "fits" if run.fit.fits else "does not fit"
    return Headline(first, f"It {fits} in {usable}{optimizer}.")


def close_fit_text(run: Run) -> str:
    """Name what makes it close: the CUDA context, or what the prediction does not count."""
    assert run.fit is not None
    usable, error = usable_text(run.fit), run.expected_error
    if error is None or not error.is_lower_bound:
        return usable
    if run.peak_reserved_bytes * (1 + error.share) > run.fit.usable_bytes:
        return usable
    return f"{error.uncounted_words}; {usable}"


def usable_text(fit: Fit) -> str:
    """Describe the usable memory of a card, which depends on what the CUDA context takes."""
    least, most = bytes_texts(fit.usable_bytes, fit.most_usable_bytes)
    return f"{least} to {most} usable" if most != least else f"{least} usable"


def _fitting_variant(pairs: Sequence[_Pair], *, others_fit: bool) -> RunHeadline:
    """Recommend the cheapest variant that fits."""
    fitting = [pair for pair in pairs if fits(pair.run)]
    step = step_word(pairs[0].base)
    if not fitting:
        close = [pair for pair in pairs if pair.run.fit is not None and pair.run.fit.word == "close"]
        close = [pair for pair in close if pair.run.fits_host is not False]
        return _close_variant(close) if close else _nothing_fits(pairs, others_fit=others_fit)
    sure = [pair for pair in fitting if pair.run.fit is not None and pair.run.fit.word == "yes"]
    best = min(sure or fitting, key=lambda option: (option.run.flops or 0, option.run.peak_reserved_bytes))
    doubt = "" if sure else ", but it is close"
    answer = f"{_short(best.label)} makes the {step} fit{location_text(best.run)}{with_optimizer(best.base)}{doubt}."
    saves = f"It saves {bytes_text(abs(best.saved))}" if best.saved >= 0 else f"It takes {bytes_text(-best.saved)} more"
    return RunHeadline(Headline(answer, f"{saves}{_cost_clause(best.base, best.run)}."), best.number)


def _close_variant(pairs: Sequence[_Pair]) -> RunHeadline:
    """Recommend the smallest variant that may fit."""
    best = min(pairs, key=lambda option: option.run.peak_reserved_bytes)
    step, fit = step_word(best.base), best.run.fit
    assert fit is not None
    where = f"{location_text(best.run)}{with_optimizer(best.base)}"
    answer = f"{_short(best.label)} may make the {step} fit{where}, but it is close."
    reserves = bytes_texts(best.run.peak_reserved_bytes, fit.most_usable_bytes)[0]
    return RunHeadline(Headline(answer, f"It reserves {reserves} of {usable_text(fit)}."), best.number)


def _nothing_fits(pairs: Sequence[_Pair], *, others_fit: bool) -> RunHeadline:
    """Say that nothing fits, and which size of the workload where another one fits."""
    first = pairs[0]
    siblings = [pair for pair in pairs if pair.base_number == first.base_number]
    tried = {choice.number: choice.run for choice in siblings} | {first.base_number: first.base}
    least = min(tried, key=lambda number: tried[number].peak_reserved_bytes)
    size = bytes_text(first.base.fit.usable_bytes) if first.base.fit else "this card"
    what = first.base_label.removesuffix(": Baseline") if others_fit else f"the {step_word(first.base)}"
    where = location_text(tried[least])
    answer = f"No variant makes {what} fit in {size}{where}{with_optimizer(first.base)}."
    reserves = bytes_text(tried[least].peak_reserved_bytes)
    return RunHeadline(
        Headline(answer, f"Lowest{' of its variants' if others_fit else ''}: {reserves} reserved."), least
    )


def _cost_clause(base: Run, run: Run) -> str:
    change, copied = _cost_change(base, run), (run.host_bytes or 0) - (base.host_bytes or 0)
    if change is None:
        return ""
    if abs(change.share) < 0.0005:
        # Copies may take longer than all the compute.
        return f" for no extra {change.what}{f' and {bytes_text(copied)} copied from the host' if copied > 0 else ''}"
    if change.is_within_spread:
        return f" for about the same {change.what}"
    return f" for {percent_text(abs(change.share), 1)} {'more' if change.share > 0 else 'less'} {change.what}"


def cost_change_text(base: Run, run: Run) -> str:
    """'+8 % compute' for a row."""
    change = _cost_change(base, run)
    if change is None:
        return ""
    if abs(change.share) < 0.0005:
        return f"the same {change.what}"
    if change.is_within_spread:
        return f"about the same {change.what}"
    sign = "+" if change.share > 0 else "\N{MINUS SIGN}"
    return f"{sign}{percent_text(abs(change.share), 1)} {change.what}"


@dataclass(frozen=True)
class _CostChange:
    share: float
    what: str
    is_within_spread: bool = False
    """The steps of one run differ by more than the two runs do."""


def _cost_change(base: Run, run: Run) -> _CostChange | None:
    """Return the growth in seconds where both were measured, else in work."""
    if base.seconds and run.seconds and base.seconds.median:
        (low, high), (least, most) = _middle_half(base.seconds), _middle_half(run.seconds)
        return _CostChange(run.seconds.median / base.seconds.median - 1, "time", low <= most and least <= high)
    return _CostChange(run.flops / base.flops - 1, "compute") if base.flops and run.flops else None


def _middle_half(seconds: Seconds) -> tuple[float, float]:
    """Return the quartiles; runs saved by older releases have only their distance."""
    if seconds.low is None or seconds.high is None:
        return seconds.median - seconds.spread / 2, seconds.median + seconds.spread / 2
    return seconds.low, seconds.high


def is_bug(run: Run | None) -> bool:
    verdict = (run.numerics or {}).get("verdict") if run is not None else None
    return isinstance(verdict, dict) and verdict.get("ok") is False
