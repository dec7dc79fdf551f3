"""What one visitor has open and looks at. Plain and frozen: every change is a new one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from memviz.analysis.which_device import chosen_device
from memviz.headlines.names import trace_name
from memviz.trace.model import Trace

MOST_OPEN = 64


@dataclass(frozen=True)
class Opened:
    key: str
    """Of the store; known to this visitor's browser only."""
    name: str
    device: str
    devices: tuple[str, ...]
    sample: str = ""
    """The name of a sample in links, because everybody has them; of an estimate of one, with its action behind it."""

    @staticmethod
    def of(key: str, trace: Trace) -> Opened:
        return Opened(
            key,
            trace_name(trace.about.source),
            chosen_device(trace).name,
            tuple(device.name for device in trace.devices),
        )


@dataclass(frozen=True)
class Refused:
    name: str
    reason: str
    turn: str = ""
    """Which one it is for the browser that sent it, and waits to see it here."""
    drop: int = 0
    """With which other files it came."""


@dataclass(frozen=True)
class Session:
    opened: tuple[Opened, ...] = ()
    chosen: str = ""
    compared: tuple[str, ...] = ()
    """Keys, baseline first."""
    refused: tuple[Refused, ...] = ()
    home: bool = False
    """The samples are shown although traces are open."""
    table: str = ""
    """Key of the table of ranks that this visitor brought."""

    def of(self, key: str) -> Opened | None:
        return next((opened for opened in self.opened if opened.key == key), None)

    @property
    def current(self) -> Opened | None:
        return self.of(self.chosen)

    def with_opened(self, new: Opened) -> Session:
        """The new one is looked at; the first few are compared without being asked for."""
        opened = (*self.opened, new)[-MOST_OPEN:]
        compared = (*self.compared, new.key) if len(self.compared) < 2 else self.compared
        return replace(self, opened=opened, chosen=new.key, compared=compared, home=False)._sound()

    def with_refused(self, refused: Refused) -> Session:
        return replace(self, refused=(*self.refused, refused))

    def without_refused(self, before: int | None = None) -> Session:
        """After a success. What came with drop `before` or after it stays to be read."""
        still = () if before is None else tuple(one for one in self.refused if one.drop >= before)
        return self if still == self.refused else replace(self, refused=still)

    def choosing(self, key: str) -> Session:
        return replace(self, chosen=key, home=False)._sound()

    def closing(self, key: str) -> Session:
        return replace(self, opened=tuple(opened for opened in self.opened if opened.key != key))._sound()

    def on_device(self, key: str, device: str) -> Session:
        opened = tuple(
            replace(opened, device=device) if opened.key == key and device in opened.devices else opened
            for opened in self.opened
        )
        return replace(self, opened=opened)

    def toggling(self, key: str, most: int = 8) -> Session:
        """In or out of the comparison, at its end."""
        if key in self.compared:
            return replace(self, compared=tuple(other for other in self.compared if other != key))
        return replace(self, compared=(*self.compared, key)[-most:])._sound()

    def with_baseline(self, key: str) -> Session:
        rest = tuple(other for other in self.compared if other != key)
        return replace(self, compared=(key, *rest))._sound()

    def _sound(self) -> Session:
        keys = [opened.key for opened in self.opened]
        chosen = self.chosen if self.chosen in keys else (keys[-1] if keys else "")
        return replace(self, chosen=chosen, compared=tuple(key for key in self.compared if key in keys))
