"""Builds the page and launches it. Hugging Face Spaces run this file."""

from memviz.ui.app import build_app, launch_options

if __name__ == "__main__":
    build_app().launch(**launch_options())
