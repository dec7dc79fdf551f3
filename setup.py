"""Build settings beyond pyproject.toml: requirements of each extra, and the place of two folders in the wheel.

In a checkout `optimizations` and `sample_traces` stand at the top, where people look for them. In other people's
environments nothing of ours may have such a name, so a wheel has both inside `memviz`.
"""

import re
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
MOVED = ("optimizations", "sample_traces")
EXTRAS = {
    "page": ("gradio", "plotly", "pandas"),
    "ranks": ("pyarrow",),
    "run": ("torch", "diffusers", "transformers"),
}
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_IMPORT = re.compile(rf"^(\s*(?:from|import) )({'|'.join(MOVED)})\b", re.MULTILINE)


def requirements() -> dict[str, str]:
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    wanted = (line.strip() for line in lines if line.strip() and not line.startswith("#"))
    return {_NAME.match(line)[0].lower(): line for line in wanted}


class BuildPy(build_py):
    def get_source_files(self) -> list[str]:
        """Add to a source archive what the same wheel is built from."""
        moved = (path for name in MOVED for path in (ROOT / name).rglob("*") if "__pycache__" not in path.parts)
        return [*super().get_source_files(), "requirements.txt", *(str(path.relative_to(ROOT)) for path in moved)]

    def run(self) -> None:
        if not self.editable_mode:
            # What an earlier build left there would come along, though the checkout has it no more.
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        if self.editable_mode:
            # A checkout stays as it is, with all three at its top.
            self.distribution.packages += MOVED
            return
        inside = Path(self.build_lib) / "memviz"
        for name in MOVED:
            shutil.copytree(
                ROOT / name, inside / name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
            )
        for path in inside.rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            moved = _IMPORT.sub(r"\1memviz.\2", text)
            if moved != text:
                path.write_text(moved, encoding="utf-8")


known = requirements()
extras = {extra: [known[name] for name in names] for extra, names in EXTRAS.items()}
setup(
    install_requires=[known["numpy"]],
    extras_require={**extras, "all": [line for lines in extras.values() for line in lines]},
    cmdclass={"build_py": BuildPy},
)
