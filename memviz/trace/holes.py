"""What is made of many events leaves holes in the C library's heap: 480 MB of 800 after ten million."""

from __future__ import annotations

MANY_EVENTS = 2_000_000


def give_back_after(event_count: int) -> None:
    """Where so many events were read, or looked through, what is free goes back to the system."""
    if event_count >= MANY_EVENTS:
        # Few files are so long, and every command would pay for importing ctypes and threads.
        from memviz.c_memory import give_back_holes

        give_back_holes()
