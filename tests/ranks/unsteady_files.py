"""A place on a network that fails every file's first reading, as overloaded ones do."""

from __future__ import annotations

from typing import Any

from fsspec.implementations.local import LocalFileSystem


class UnsteadyFiles(LocalFileSystem):
    protocol = "unsteady"
    opened: set[str] = set()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.removeprefix("unsteady://"))

    def unstrip_protocol(self, name: str) -> str:
        return f"unsteady://{self._strip_protocol(name)}"

    def open(self, path: str, *args: Any, **more: Any) -> Any:
        if path not in self.opened:
            self.opened.add(path)
            raise ConnectionResetError("The line broke.")
        return super().open(path, *args, **more)
