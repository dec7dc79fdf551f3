"""Builds the page and launches it. Hugging Face Spaces run this file."""

from memviz.memory import freeze_startup_objects, reexec_with_malloc, without_collection

if __name__ == "__main__":
    reexec_with_malloc()
    with without_collection():
        from memviz.ui.app import build_app, launch_options

        page = build_app()
    freeze_startup_objects()
    page.launch(**launch_options())
