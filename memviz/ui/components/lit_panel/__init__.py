"""A Panel whose rows light the timeline: what is clicked stays lit, icicles are walked with arrow keys, and whole
tables are saved as CSV, without a file on the server. `lit_panel.js` does it in the browser.

A row, of a table or a list, has `data-light-by` and `data-light-group`, as page.js has it, and a button with
`data-keep`. An element with `data-light-rest` and `data-light-rest-group` says what is lit while nothing is pointed at
or kept. A button with `data-csv` asks the server function `table_csv` with all its data; `data-name` is the file's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from memviz.ui.components.component import Request, served
from memviz.ui.components.panel import Panel

MakeCsv = Callable[[Mapping[str, str]], str]
"""From a button's data to the table. Raises MemvizError for what it cannot know."""


class LitPanel(Panel):
    script = Path(__file__).parent / "lit_panel.js"

    def __init__(self, make_csv: MakeCsv, **options: Any) -> None:
        super().__init__(server_functions=[csv_server(make_csv)], **options)


def csv_server(make_csv: MakeCsv) -> Callable[[Any], str]:
    @served
    def table_csv(request: Request) -> str:
        """Called by the browser with the data of the button."""
        return make_csv({str(key): str(value) for key, value in request.items()})

    return table_csv
