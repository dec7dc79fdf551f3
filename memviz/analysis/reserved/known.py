"""Whether a recording tells what was reserved: a profile of the host does not, nor does a list of events alone."""

from __future__ import annotations


def is_reserved_known(live_bytes: int, reserved_bytes: int) -> bool:
    """What is live lies in reserved bytes: none of these is none that the file knows of."""
    return bool(reserved_bytes) or not live_bytes
