"""Gradio is imported without writing stubs of its components."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

from gradio import component_meta

import memviz.ui  # noqa: F401 - it replaces the function

ROOT = Path(__file__).parents[2]


def test_none_is_written_from_the_first_class_on(tmp_path: Path):
    package = tmp_path / "gradio"
    package.mkdir()
    (package / "component_meta.py").write_text("def create_or_modify_pyi(*_):\n    print('written')\n")
    (package / "__init__.py").write_text(
        "from gradio import component_meta\ncomponent_meta.create_or_modify_pyi(object, 'object', [])\nprint('here')\n"
    )
    for imports, said in (("gradio", "written\nhere\n"), ("memviz.ui, gradio", "here\n")):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
        code = [sys.executable, "-c", f"import {imports}"]
        done = subprocess.run(code, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout == said


def test_the_installed_gradio_writes_by_the_function_that_is_replaced():
    assert component_meta.create_or_modify_pyi.__module__ == "memviz.ui"
    assert "create_or_modify_pyi(component_class, name, events)" in inspect.getsource(component_meta.ComponentMeta)
