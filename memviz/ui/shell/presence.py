"""Whether whoever asked is still there to hear the answer."""

from __future__ import annotations

from collections.abc import Callable

from gradio.context import LocalContext


def presence() -> Callable[[], bool]:
    """To be called where Gradio has begun the work; what it returns may be asked from anywhere, and at any time.

    Gradio lets go of an event when the stream of its visitor ends. It tells a generator so only at its next part, and
    a function never.
    """
    blocks, event_id = LocalContext.blocks.get(None), LocalContext.event_id.get(None)
    queue = getattr(blocks, "_queue", None)
    event = getattr(queue, "event_ids_to_events", {}).get(event_id)
    return lambda: bool(getattr(event, "alive", True))
