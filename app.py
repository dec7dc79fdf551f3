"""Builds the page and launches it. Hugging Face Spaces run this file."""

from memviz.c_memory import begin_with_malloc
from memviz.collector import set_aside, without_collection

if __name__ == "__main__":
    begin_with_malloc()
    with without_collection():
        from memviz.ui.app import build_app, launch_options

        page = build_app()
    set_aside()
    page.launch(**launch_options())
