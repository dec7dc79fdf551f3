"""What was found out, one JSON file a case: OUT/<part>/<name>.json, with its snapshots beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Found = Mapping[str, Any]


class Results:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def folder_of(self, part: str) -> Path:
        made = self.folder / part
        made.mkdir(parents=True, exist_ok=True)
        return made

    def log_of(self, part: str, name: str) -> Path:
        return self.folder_of("logs") / f"{part}-{name}.log"

    def write(self, found: Found) -> None:
        """Whole or not at all: a process may be ended at any moment."""
        path = self.folder_of(found["part"]) / f"{found['name']}.json"
        partial = path.with_suffix(".part")
        partial.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        partial.replace(path)

    def read(self, part: str, name: str) -> dict[str, Any] | None:
        try:
            text = (self.folder / part / f"{name}.json").read_text(encoding="utf-8")
            found: dict[str, Any] = json.loads(text)
        except (OSError, ValueError):
            return None
        return found

    def result(self, part: str, name: str) -> dict[str, Any] | None:
        """Of a case that did not fail."""
        return (self.read(part, name) or {}).get("result")

    def of(self, part: str) -> list[dict[str, Any]]:
        """All of a part, by name."""
        names = sorted(path.stem for path in (self.folder / part).glob("*.json"))
        return [found for found in (self.read(part, name) for name in names) if found is not None]

    def measured_on(self) -> set[str]:
        """The GPUs and releases of torch that the measured results are from."""
        machines = [found["machine"] for part in ("check", "capture", "seeds", "cost") for found in self.of(part)]
        return {f"{machine['device']}, torch {machine['torch']}" for machine in machines if machine.get("device")}

    def card_gib(self) -> float | None:
        """As the first case found it; before that everything is tried."""
        found = (each["machine"].get("memory_bytes") for part in ("check", "capture") for each in self.of(part))
        return next((size / (1 << 30) for size in found if size), None)
