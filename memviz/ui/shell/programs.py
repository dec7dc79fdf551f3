"""The page's interface for programs: the same answers as the command line, for `gradio_client` and for agents.

from gradio_client import Client, handle_file
Client(url).predict(handle_file("run.pickle"), api_name="/summary")
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gradio as gr
from gradio.exceptions import InvalidPathError

from memviz.analysis import peak as peaks
from memviz.analysis.as_json import live_json
from memviz.analysis.comparing.changes import changes
from memviz.analysis.groups import GROUPINGS
from memviz.analysis.which_device import chosen_device
from memviz.errors import MemvizError, UsageError
from memviz.headlines.as_json import compared_json, summary_json
from memviz.trace.load import load_trace
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.run.answer import RunAnswers
from memviz.ui.run.for_programs import run_asked
from memviz.ui.saved.report import report_page
from memviz.ui.shell.exports import drop, new_file
from memviz.ui.shell.presence import presence
from memviz.ui.shell.sound import sound, sound_text
from memviz.ui.upload.arriving import not_kept

MOST_ASKED = 96
"""Runs that programs wait for at once. Each takes one of the places that `launch_options` makes, and no thread."""
_PARSE: dict[str, Any] = {"concurrency_id": "parse", "concurrency_limit": 2}
_MOST_ROWS = 10_000
_MOST_FILES = 24
_MOST_WORDS = 1000
_KINDS = {
    "file": "an uploaded file",
    "other": "an uploaded file",
    "files": "a list of uploaded files",
    "by": "a text",
    "top": "a whole number",
}


class Blocks(gr.Blocks):
    """A page that says what is wrong with a question, where Gradio would say nothing and fill the log."""

    async def preprocess_data(self, block_fn: Any, inputs: list[Any], *more: Any, **options: Any) -> Any:
        try:
            return await super().preprocess_data(block_fn, inputs, *more, **options)
        except gr.Error as error:
            error.print_exception = False
            raise
        except Exception as error:
            raise _refused(_words_for(block_fn, inputs, error)) from None


def _words_for(block_fn: Any, inputs: list[Any], error: Exception) -> str:
    names = [each.label or "" for each in block_fn.inputs]
    about = f"/{block_fn.api_name}" if block_fn.api_name else "This part of the page"
    if len(inputs) < len(names):
        return f"{about} takes {len(names)} values ({', '.join(names)}); {len(inputs)} came."
    if isinstance(error, InvalidPathError):
        return f"{about} takes files that were uploaded here, and no others."
    kinds = ", ".join(f"{each} ({_KINDS[each]})" if each in _KINDS else each for each in names)
    return f"{about} takes {kinds or 'nothing'}. What came is of another kind."


def _refused(words: str) -> gr.Error:
    return gr.Error(sound_text(words)[:_MOST_WORDS], print_exception=False)


def build(runs: RunAnswers) -> None:
    """Endpoints need components for what goes in and out; people never see these."""
    with gr.Row(visible=False):
        file, other = gr.File(label="file"), gr.File(label="other")
        files = gr.File(label="files", file_count="multiple")
        by = gr.Dropdown(list(GROUPINGS), value="site", label="by")
        top = gr.Number(20, precision=0, label="top")
        answer, page = gr.JSON(label="answer"), gr.File(label="page")
        gr.Button().click(summary, [file], answer, api_name="summary", **_PARSE)
        gr.Button().click(peak, [file, by, top], answer, api_name="peak", **_PARSE)
        gr.Button().click(diff, [file, other, by, top], answer, api_name="diff", **_PARSE)
        gr.Button().click(report, [files], page, api_name="report", **_PARSE)
        workload, card = gr.Textbox(label="workload"), gr.Textbox("", label="card")
        settings, optimizations = gr.JSON({}, label="settings"), gr.JSON([], label="optimizations")
        asked = [workload, settings, optimizations, card]
        # Runs wait for each other in a line of their own, which is fair; Gradio's is not.
        gr.Button().click(Run(runs).run, asked, answer, api_name="run", concurrency_limit=MOST_ASKED)


def summary(file: str) -> dict[str, Any]:
    """What a PyTorch memory snapshot holds: bytes live at the start, at the peak and at the end, and notes.

    Args:
        file: A snapshot, a pickle or JSON, plain or gzipped.
    """
    with _in_words():
        return _sound(summary_json(_open(file)[0]))


def peak(file: str, by: str = "site", top: int = 20) -> dict[str, Any]:
    """What the peak of a snapshot is made of, largest first; rows and rest add up to the byte.

    Args:
        file: A snapshot.
        by: What a row is: site, line, stack, category, module, phase, annotation, stream, pool or size.
        top: How many rows.
    """
    with _in_words():
        grouping, rows = _grouping(by), _rows(top)
        trace, device = _open(file)
        return _sound(live_json(trace, device, peaks.peak(trace, device, grouping, top=rows), "peak_bytes"))


def diff(file: str, other: str, by: str = "site", top: int = 20) -> dict[str, Any]:
    """From the peak of one snapshot to the peak of another; rows and rest add up to the difference.

    Args:
        file: The baseline.
        other: The snapshot to compare with it.
        by: What a row is.
        top: How many rows.
    """
    with _in_words():
        grouping, rows = _grouping(by), _rows(top)
        sides = [_open(file), _open(other)]
        return _sound(compared_json(sides, changes(sides, grouping, with_kinds=False), rows))


def report(files: list[str]) -> str:
    """One self-contained HTML page about one or more snapshots, the first as the baseline.

    Args:
        files: Snapshots.
    """
    with _in_words():
        return _report(files)


def _report(files: object) -> str:
    if not isinstance(files, list) or not 0 < len(files) <= _MOST_FILES:
        raise UsageError(f"files are a list of one to {_MOST_FILES} snapshots.")
    page = report_page([_open(each) for each in files])
    path = new_file("report.html")
    try:
        path.write_text(page, encoding="utf-8", errors="replace")
    except OSError:
        drop(path)
        raise
    return str(path)


class Run:
    def __init__(self, answers: RunAnswers) -> None:
        self._answers = answers

    async def run(
        self,
        workload: str,
        settings: dict[str, Any],
        optimizations: list[dict[str, Any]],
        card: str,
        request: gr.Request,
    ) -> dict[str, Any]:
        """Predicts the memory of a model with optimizations on a card; as `python -m memviz run --json` does.

        Args:
            workload: A name, as `feed_forward` or `ltx_video`.
            settings: Its knobs, as {"batch": 2}.
            optimizations: What to switch on, as [{"name": "checkpointing", "every": 2}].
            card: A part of a card's name, as RTX 4090.
        """
        with _in_words():
            found = await run_asked(
                self._answers,
                workload,
                {} if settings is None else settings,
                [] if optimizations is None else optimizations,
                card=card or "",
                owner=request.session_hash or "",
                is_there=presence(),
            )
            return _sound(found)


@contextmanager
def _in_words() -> Iterator[None]:
    """Whatever is wrong with a question is said to who asked it."""
    try:
        yield
    except MemvizError as error:
        raise _refused(str(error)) from None
    except OSError as error:
        raise _refused(not_kept(error)) from None
    except MemoryError:
        raise _refused("The answer needs more memory than this machine has free.") from None


def _sound(answer: dict[str, Any]) -> dict[str, Any]:
    """What everybody can read as JSON."""
    found: dict[str, Any] = sound(answer)
    return found


def _grouping(by: object) -> str:
    if not isinstance(by, str) or by not in GROUPINGS:
        raise UsageError(f"by is one of {', '.join(GROUPINGS)}.")
    return by


def _rows(top: object) -> int:
    if isinstance(top, bool) or not isinstance(top, int) or not 1 <= top <= _MOST_ROWS:
        raise UsageError(f"top is a whole number from 1 to {_MOST_ROWS:,}.")
    return top


def _open(file: object) -> tuple[Trace, DeviceTrace]:
    """With the device that ran out of memory, else the one whose memory went highest."""
    if not isinstance(file, str) or not file:
        raise UsageError("Name a snapshot file.")
    trace = load_trace(file, is_wanted=presence())
    return trace, chosen_device(trace)
