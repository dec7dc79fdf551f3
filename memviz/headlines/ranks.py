"""Many ranks in two sentences: which one is highest, and which are out of line."""

from __future__ import annotations

from collections.abc import Sequence

from memviz.headlines.headline import Headline
from memviz.headlines.names import short
from memviz.ranks.card import OnCard
from memviz.ranks.summary import RankSummary
from memviz.units import bytes_text, count_text, counted, delta_text

_FEW = 4
_MOST_SPANS = 8


def ranks(job: RankSummary, card: OnCard | None = None) -> Headline:
    highest = job.highest
    peak = f"Of {counted(len(job.ranks), 'rank')} the highest peak is {bytes_text(highest.row.peak_bytes)}, on rank"
    answer = f"{peak} {highest.number}."
    if job.ran_out:
        ran_out = _numbers([rank.number for rank in job.ran_out])
        answer = f"{ran_out[0].upper()}{ran_out[1:]} ran out of memory. {answer}"
    sentences = [_likeness(job), _most_out_of_line(job), _imbalance(job), _failed(job)]
    if card is not None:
        sentences.insert(0, on_card(card))
    return Headline(answer, " ".join(filter(None, sentences)))


def _likeness(job: RankSummary) -> str:
    if len(job.ranks) == 1:
        return ""
    out, group = len(job.outliers), job.groups[0]
    largest, same = len(group.ranks), "the same" if group.least_bytes == group.most_bytes else "nearly the same"
    # Where some ran out nobody knows what they need: a peak is only how far they came.
    need, does = ("reached", "did") if job.ran_out else ("need", "does")
    if len(job.groups) == 1:
        return f"They all {need} {'' if job.imbalance.bytes == 0 else 'nearly '}the same."
    if out:
        rest = len(job.ranks) - out
        what = same if rest == largest else f"what their group {does}"
        return f"{count_text(rest)} {need} {what}, {count_text(out)} {'differs' if out == 1 else 'differ'}."
    if largest == 1:
        return f"No two {need} the same."
    return f"They are {counted(len(job.groups), 'group')}; in the largest {count_text(largest)} ranks {need} {same}."


def _most_out_of_line(job: RankSummary) -> str:
    if not job.outliers:
        return ""
    one = job.outliers[0]
    category, site = one.chief_category, one.chief_site
    causes = []
    if category is not None:
        causes.append(
            f", {_part(category.delta_bytes, one.delta_bytes)} {category.words} ({delta_text(category.delta_bytes)})"
        )
    if site is not None:
        joint = "; the largest site is" if causes else f", {_part(site.delta_bytes, one.delta_bytes)} by"
        causes.append(f"{joint} {short(site.name)} ({delta_text(site.delta_bytes)})")
    return f"Rank {one.rank} has {delta_text(one.delta_bytes)} against rank {one.against}{''.join(causes)}."


def _part(of_cause: int, whole: int) -> str:
    """Others may go against it."""
    if abs(of_cause) > abs(whole):
        return "more than all of it"
    return "most of it" if 2 * abs(of_cause) > abs(whole) else "the largest part of it"


def _imbalance(job: RankSummary) -> str:
    apart = job.imbalance
    if not apart.bytes:
        return ""
    return f"The lowest peak, on rank {apart.lowest}, is {bytes_text(apart.bytes)} under the highest."


def _failed(job: RankSummary) -> str:
    many = len(job.failed)
    return f"{counted(many, 'file')} {'is' if many == 1 else 'are'} left out." if many else ""


def missing(job: RankSummary, before: str = "No file of") -> str:
    """'No file of ranks 3, 8-11.' Nothing where none is missing."""
    if not job.missing:
        return ""
    noun = "rank" if sum(last - first + 1 for first, last in job.missing) == 1 else "ranks"
    return f"{before} {noun} {spans_text(job.missing)}."


def spans_text(spans: Sequence[tuple[int, int]]) -> str:
    """'3, 8-11'."""
    words = [f"{first}" if first == last else f"{first}-{last}" for first, last in spans[:_MOST_SPANS]]
    return ", ".join([*words, *(["..."] if len(spans) > _MOST_SPANS else [])])


def on_card(answer: OnCard) -> str:
    # A card that is known by its size alone has it for a name.
    size = bytes_text(answer.card.total_bytes)
    where = f"On {answer.card.name}" if answer.card.name.endswith(size) else f"On {answer.card.name} ({size})"
    if answer.first is None:
        many = len(answer.replayed)
        by_replay = (
            f", {counted(many, 'rank')} by a replay of {'its' if many == 1 else 'their'} requests" if many else ""
        )
        return f"{where} all of them fit{by_replay}."
    if not answer.runs_out:
        if not answer.lacks_bytes and answer.cut_short:
            unknown = f"{_numbers(answer.cut_short)} ran out when recorded, and what was still to come is not known"
            return f"{where} it is close for {_numbers(answer.close)}: {unknown}."
        if not answer.lacks_bytes:
            return f"{where} it is close for {_numbers(answer.close)}: what they reserve is not in their files."
        least = f"by {bytes_text(answer.lacks_bytes)} of reserved memory"
        return f"{where} it is close for {_numbers(answer.close)}: rank {answer.first} is over {least}."
    step = "" if answer.first_step is None else f", {answer.first_step.words}"
    rank = f"{where} rank {answer.first} runs out first"
    would = f"{counted(len(answer.runs_out), 'rank')} would."
    if answer.first in answer.replayed:
        return f"{rank} by a replay of its requests{step}; {would}"
    return f"{rank}{step}, {bytes_text(answer.lacks_bytes)} short; {would}"


def _numbers(numbers: list[int] | tuple[int, ...]) -> str:
    """'Rank 3', 'ranks 3 and 5', '12 ranks'."""
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if len(numbers) > _FEW:
        return f"{count_text(len(numbers))} ranks"
    return f"ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
