"""The page. Gradio is imported without writing `.pyi` stubs: for each of its components it would parse the source and
compare files, a third of its import, and an installation may be read-only.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

_MODULE = "gradio.component_meta"


class _Finder(MetaPathFinder):
    """Nothing else in Gradio runs between this module and the first class that it is asked to write of."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_mute(module: ModuleType) -> None:
                execute(module)
                _mute(module)

            spec.loader.exec_module = execute_and_mute  # type: ignore[method-assign]
        return spec


def _mute(module: ModuleType) -> None:
    module.create_or_modify_pyi = lambda component_class, class_name, events: None  # type: ignore[attr-defined]


if _MODULE in sys.modules:
    _mute(sys.modules[_MODULE])
else:
    sys.meta_path.insert(0, _Finder())
