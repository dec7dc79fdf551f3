"""How an event of the page reaches Gradio: what every tab says when it wires one up."""

from __future__ import annotations

from typing import Any

NO_PROGRESS: dict[str, Any] = {"show_progress": "hidden", "show_progress_on": []}
"""On no component: at every word on progress Gradio copies all that each of them holds, and all inside it."""
PRIVATE: dict[str, Any] = {
    **NO_PROGRESS,
    "api_visibility": "private",
    "concurrency_limit": None,
    "trigger_mode": "always_last",
}
"""Through the queue: only then does Gradio tell the tabs of a `gr.State` that has changed. What is clicked while the
answer before is on its way is answered after it (Gradio's `once` would drop it); `inTurn` in base.js sees to that."""
IN_PARTS: dict[str, Any] = {**PRIVATE, "trigger_mode": "multiple"}
"""For answers that come in parts, and for what must not be dropped: one is sent while the one before still runs."""
