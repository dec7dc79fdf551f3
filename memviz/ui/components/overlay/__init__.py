"""Several traces over each other, drawn in the browser from the timelines that stand side by side."""

from __future__ import annotations

from pathlib import Path

from memviz.ui.components.component import Component


class Overlay(Component):
    """`value`: `linked` (the timelines' name), `count` of them, `other` (which is compared), `shown`, `label`."""

    script = Path(__file__).parent / "overlay.js"
