"""Gradio in the house's clothes: ink on paper, no boxes in boxes. Colour is left to bytes."""

from __future__ import annotations

import gradio as gr

_INK = gr.themes.Color(
    "#fafafa",
    "#f4f4f5",
    "#e4e4e7",
    "#d4d4d8",
    "#a1a1aa",
    "#71717a",
    "#52525b",
    "#3f3f46",
    "#27272a",
    "#18181b",
    "#0f0f11",
    name="ink",
)


def theme() -> gr.themes.Base:
    base = gr.themes.Base(
        primary_hue=_INK,
        secondary_hue=_INK,
        neutral_hue=_INK,
        radius_size="md",
        spacing_size="sm",
        text_size="sm",
        font=[gr.themes.LocalFont("IBM Plex Sans", weights=(400, 700)), "ui-sans-serif", "system-ui", "sans-serif"],
        font_mono=[gr.themes.LocalFont("IBM Plex Mono", weights=(400, 700)), "ui-monospace", "monospace"],
    )
    return base.set(
        body_text_color="#18181b",
        body_text_color_dark="#f4f4f5",
        body_text_color_subdued="#52525b",
        body_text_color_subdued_dark="#b4b4bd",
        background_fill_primary="#ffffff",
        background_fill_primary_dark="#0f0f11",
        background_fill_secondary="#fafafa",
        background_fill_secondary_dark="#151518",
        border_color_primary="#e4e4e7",
        border_color_primary_dark="#2b2b30",
        block_background_fill="transparent",
        block_background_fill_dark="transparent",
        block_border_width="0px",
        block_shadow="none",
        block_padding="0px",
        color_accent="#18181b",
        checkbox_background_color_selected="#18181b",
        checkbox_background_color_selected_dark="#f4f4f5",
        button_primary_background_fill="#18181b",
        button_primary_background_fill_dark="#f4f4f5",
        button_primary_text_color="#ffffff",
        button_primary_text_color_dark="#0f0f11",
        button_secondary_background_fill="#ffffff",
        button_secondary_background_fill_dark="#1b1b1f",
        button_secondary_border_color="#e4e4e7",
        button_secondary_border_color_dark="#2b2b30",
        input_border_width="1px",
        input_background_fill="#ffffff",
        input_background_fill_dark="#1b1b1f",
        slider_color="#18181b",
        slider_color_dark="#f4f4f5",
        layout_gap="12px",
    )
