"""Pieces of the page with scripts and looks of their own.

Gradio writes a `.pyi` file beside the source of every subclass of its components, while it is imported. An
installation may be read-only, and type checkers would read those files instead of ours: so it is told not to.
"""

from __future__ import annotations

from typing import Any

from gradio import component_meta


def _write_nothing(component_class: type, class_name: str, events: Any) -> None:
    """In place of the function that writes."""


component_meta.create_or_modify_pyi = _write_nothing
