"""`%%predict`: a cell of a notebook on the pretended device.

The cell finds the names of the notebook, and what it assigns stays in the cell: tensors of the pretended device have
no values, so the rest of the notebook could not use them.
"""

from __future__ import annotations

import argparse
import ast
import linecache
import shlex
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, NoReturn

from memviz.commands.predict import add_device, add_output, stated_answers, summary_lines
from memviz.errors import MemvizError, UsageError
from memviz.text import tag

if TYPE_CHECKING:
    from memviz.runner.predicted_script import ScriptPrediction

_NAME = "cell"
"""File of the cell, as in `--assume cell:3=5`."""
_USAGE = "%%predict [--card CARD] [--memory SIZE] [--steps N] [--assume FILE:LINE=VALUE] [--continue] [-o FILE] [...]"


class CellPrediction:
    """Result of `%%predict`, shown with its headline and, where plotly is there, its timeline."""

    def __init__(self, done: ScriptPrediction, output: Path | None) -> None:
        self.estimate = done.estimate
        self._lines = list(summary_lines(done, output))

    def __repr__(self) -> str:
        return "\n".join(self._lines)

    def _repr_html_(self) -> str:
        return str(tag("pre", "\n".join(self._lines)))

    def _ipython_display_(self) -> None:
        display: Any = import_module("IPython.display").display
        display({"text/plain": repr(self), "text/html": self._repr_html_()}, raw=True)
        if self.estimate.peak_reserved:
            # Without plotly the figures in words remain.
            with suppress(MemvizError):
                from memviz import figures

                display(figures.timeline(self.estimate))


class _OptionsOfCell(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%%predict: {message}. {_USAGE}")


def _options(line: str) -> argparse.Namespace:
    parser = _OptionsOfCell(prog="%%predict", usage=_USAGE, add_help=False)
    add_device(parser)
    add_output(parser)
    return parser.parse_args(shlex.split(line))


def predict_cell(shell: Any, line: str, cell: str) -> CellPrediction | None:
    """Run a cell of the notebook of `shell`, show its prediction, and return it."""
    from IPython.core.error import UsageError as ShownByName

    try:
        return _predicted(shell, _options(line), cell)
    except MemvizError as error:
        # IPython shows this one without a traceback.
        raise ShownByName(str(error)) from None


def _predicted(shell: Any, args: argparse.Namespace, cell: str) -> CellPrediction | None:
    from memviz.predictor.cards import card_text
    from memviz.runner.cell_names import names_of_cell
    from memviz.runner.predicted_script import ScriptPrediction, predicting, stop_behind
    from memviz.runner.record.recording import free_path
    from memviz.trace.write import replacing, write_pickle

    if args.output is not None:
        free_path(args.output, overwrite=args.overwrite)
    body, shown_value = _compiled(shell, cell)
    names = names_of_cell(shell.user_ns, [body, shown_value])
    card = card_text(args.card, args.memory) or None
    options = {name: getattr(args, name) for name in ("torch", "platform", "settings", "steps", "goes_beyond_card")}
    options |= {"holders": args.notes_holders, "compile": args.compiles, "gpus": args.gpus}
    error = None
    with predicting(card, assume=stated_answers(args), **options) as predicted:
        try:
            exec(body, names)
            if (value := eval(shown_value, names)) is not None:
                import_module("IPython.display").display(value)
        except SystemExit:
            # Enough steps, or the cell's own.
            pass
        except BaseException as raised:
            error = raised
    assert predicted.estimate is not None
    if args.output is not None:
        with replacing(args.output) as file:
            write_pickle(predicted.estimate.trace, file)
    stopped = None if error is None else stop_behind(error)
    if error is None:
        shown = CellPrediction(ScriptPrediction(0, predicted.estimate), args.output)
        shell.user_ns["_predicted"] = shown
        return shown
    CellPrediction(ScriptPrediction(1, predicted.estimate, stopped), args.output)._ipython_display_()
    raise stopped or error


def _compiled(shell: Any, cell: str) -> tuple[CodeType, CodeType]:
    """Compile a cell, and apart its last expression, whose value IPython displays unless a semicolon ends it."""
    text = shell.transform_cell(cell)
    # For errors, and for the lines that are quoted.
    linecache.cache[_NAME] = (len(text), None, text.splitlines(keepends=True), _NAME)
    tree, shown = ast.parse(text, _NAME), ast.Expression(ast.Constant(None, lineno=1, col_offset=0))
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not cell.rstrip().endswith(";"):
        shown = ast.Expression(tree.body.pop().value)
    return compile(tree, _NAME, "exec", dont_inherit=True), compile(shown, _NAME, "eval", dont_inherit=True)


def load(shell: Any) -> None:
    def predict(line: str, cell: str) -> CellPrediction | None:
        """Predict the GPU memory of this cell: %%predict --card L4"""
        return predict_cell(shell, line, cell)

    shell.register_magic_function(predict, "cell", "predict")
