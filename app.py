"""Builds the page and launches it. Hugging Face Spaces run this file."""

from memviz.c_memory import begin_with_malloc

if __name__ == "__main__":
    begin_with_malloc()
    from memviz.ui.app import build_app, launch_options

    build_app().launch(**launch_options())
