"""What Gradio's own upload leaves on the disk where it breaks off."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from gradio.route_utils import GradioMultiPartParser
from gradio.utils import get_upload_folder

_STALE_SECONDS = 600


def drop_leftovers(error: BaseException) -> None:
    """Those of the upload that failed with this: its reader knows them, and stands on the way of the error."""
    for reader in _readers(error):
        for file in reader._files_to_close_on_error:
            with suppress(OSError):
                file.close()
            with suppress(OSError):
                Path(file.name).unlink(missing_ok=True)


def _readers(error: BaseException) -> Iterator[Any]:
    step = error.__traceback__
    while step is not None:
        owner = step.tb_frame.f_locals.get("self")
        if isinstance(owner, GradioMultiPartParser):
            yield owner
        step = step.tb_next


def drop_stale() -> None:
    """Whole files lie in folders of their own; what lies beside them is on its way, or was given up."""
    old = time.time() - _STALE_SECONDS
    with suppress(OSError):
        for path in Path(get_upload_folder()).iterdir():
            with suppress(OSError):
                if path.is_file() and path.stat().st_mtime < old:
                    path.unlink()
