"""The page: sidebar, tabs, and how what a visitor opens travels between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

from memviz.ui.components import memory_timeline
from memviz.ui.components.panel import Panel, clicked
from memviz.ui.context import Context
from memviz.ui.opening import open_files, open_sample, sample_named
from memviz.ui.session import Session
from memviz.ui.store import TraceStore
from memviz.ui.tabs import explore
from memviz.ui.theme import theme
from memviz.ui.views.frame import brand_html, empty_html, refused_html, traces_html

_HERE = Path(__file__).parent
MOST_UPLOAD = "200mb"
STYLES = ("frame",)
"""Files in `styles/`, in this order; the tokens that all others read are in the first."""
TITLE = "memviz: what fills your GPU"


def build_app() -> gr.Blocks:
    context = Context(TraceStore())
    with gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=True, delete_cache=(3600, 86400)) as page:
        session = gr.State(Session())
        with gr.Sidebar(width=244, elem_classes="mv-side"):
            gr.HTML(brand_html(), apply_default_css=False)
            traces = Panel(traces_html(Session(), context.of), elem_id="traces")
            files = gr.File(
                label="Drop snapshots here",
                file_count="multiple",
                type="filepath",
                elem_id="files",
                height=96,
                show_label=True,
            )
        band = Panel(elem_id="band")
        empty = Panel(empty_html(), elem_id="empty")
        with (
            gr.Column(visible=False, elem_id="loaded") as loaded,
            gr.Tabs(elem_id="tabs"),
            gr.Tab("Explore", id="explore"),
        ):
            parts = explore.build(context, session)

        outputs = [session, traces, band, empty, loaded, *parts.outputs]

        def shown(current: Session, state: dict[str, Any] | None = None) -> list[Any]:
            is_open = current.current is not None
            return [
                current,
                traces_html(current, context.of),
                refused_html(current),
                gr.update(visible=not is_open),
                gr.update(visible=is_open),
                *explore.show(context, current, state),
            ]

        def upload(paths: list[str] | None, current: Session, progress: gr.Progress = gr.Progress()) -> list[Any]:  # noqa: B008
            say = lambda share, words: progress(share, desc=words)  # noqa: E731
            return [*shown(open_files(context.store, current, paths or [], say)), None]

        def act(current: Session, event: gr.EventData) -> list[Any]:
            return shown(_changed(context, current, clicked(event)))

        files.upload(upload, [files, session], [*outputs, files], concurrency_id="parse", concurrency_limit=2)
        for panel in (traces, band, empty):
            panel.click(act, [session], outputs, queue=False, show_progress="hidden", api_visibility="private")
    return page


def _changed(context: Context, session: Session, data: dict[str, str]) -> Session:
    key = data.get("key", "")
    match data.get("act"):
        case "choose":
            return session.choosing(key)
        case "close":
            context.store.drop(key)
            return session.closing(key)
        case "dismiss":
            return session.without_refused()
        case "sample":
            sample = sample_named(data.get("sample", ""))
            return open_sample(context.store, session, sample) if sample else session
    return session


def launch_options() -> dict[str, Any]:
    """For `launch`: one behaviour on a laptop, a headless server and a Space."""
    styles = [(_HERE / "styles" / f"{name}.css").read_text(encoding="utf-8") for name in STYLES]
    css = "\n".join((*styles, memory_timeline.style()))
    page = (_HERE / "page.js").read_text(encoding="utf-8")
    return {
        "theme": theme(),
        "css": css,
        "head": f"{memory_timeline.scripts()}<script>{page}</script>",
        "ssr_mode": False,
        "max_file_size": MOST_UPLOAD,
        "allowed_paths": [],
    }
