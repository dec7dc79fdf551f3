"""Files that come by address, before Gradio sees them: it would fetch whatever it is told, however large.

What was uploaded here may be named by its address on this server, as agents do, who cannot name a path.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import gradio as gr
from gradio.utils import get_upload_folder

from memviz.errors import UsageError
from memviz.ui.shell.exports import drop
from memviz.ui.shell.fetching import MOST_BYTES, fetched

_OURS = "/gradio_api/file="
_META = {"_type": "gradio.FileData"}
_MOST_ADDRESSES = 16


@asynccontextmanager
async def files_here(
    components: Sequence[Any], inputs: Sequence[Any], most_bytes: float | None
) -> AsyncIterator[list[Any]]:
    """The same inputs with no address left in them; what was fetched is gone when Gradio has copied it."""
    given = _Given(min(MOST_BYTES, int(most_bytes or MOST_BYTES)))
    try:
        yield [
            await given.here(_as_files(value) if isinstance(component, gr.File) else value)
            for component, value in zip(components, inputs, strict=False)
        ] + list(inputs[len(components) :])
    finally:
        for path in given.fetched:
            drop(path)


def _as_files(value: Any) -> Any:
    """Agents name a file by a bare address."""
    if isinstance(value, list):
        return [_as_files(item) for item in value]
    return {"path": value, "meta": _META} if isinstance(value, str) and _is_address(value) else value


def _is_address(text: object) -> bool:
    return isinstance(text, str) and text.strip().lower().startswith(("http:", "https:"))


class _Given:
    """What one question names."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.fetched: list[str] = []

    async def here(self, value: Any) -> Any:
        """Wherever it stands: Gradio looks for files in values of every kind."""
        if isinstance(value, list):
            return [await self.here(item) for item in value]
        if not isinstance(value, dict):
            return value
        if _is_address(value.get("path")) and "meta" in value:
            # The address that comes beside the path would lead Gradio there again.
            return {**value, "path": await self._path(value["path"].strip()), "url": None}
        return {key: await self.here(item) for key, item in value.items()}

    async def _path(self, address: str) -> str:
        path = uploaded(address)
        if path is not None:
            return path
        if len(self.fetched) >= _MOST_ADDRESSES:
            raise UsageError(f"More than {_MOST_ADDRESSES} addresses are not fetched for one question.")
        path = await asyncio.to_thread(fetched, address, self._most_bytes)
        self.fetched.append(path)
        return path


def uploaded(address: str) -> str | None:
    """The path of what lies here already. By which name this server was called does not matter: the path decides."""
    try:
        name = unquote(urlsplit(address).path.partition(_OURS)[2])
        path = Path(name).resolve()
        is_here = bool(name) and Path(get_upload_folder()).resolve() in path.parents and path.is_file()
    except (OSError, ValueError, RuntimeError):
        return None
    return str(path) if is_here else None


def address_of(path: str, root: str) -> str:
    return f"{root}{_OURS}{path}"
