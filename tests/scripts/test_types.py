"""Type checks of the page's scripts: TypeScript reads JSDoc, and tsconfig.json sets files and strictness."""

import subprocess
from pathlib import Path

import pytest

from tests.house.repository import ROOT, files, text_of

_HERE = Path(__file__).parent
_TSC = _HERE / "node_modules" / ".bin" / "tsc"
_INSTALL = "npm ci --prefix tests/scripts"
_PATIENCE_SECONDS = 300


@pytest.fixture(scope="module")
def tsc() -> Path:
    """Path of the compiler, which `.ci/run` installs with npm. It is not needed to run memviz, so it may be missing."""
    if not _TSC.exists():
        pytest.skip(f"typescript is not installed; where node and npm are, this does it: {_INSTALL}")
    try:
        subprocess.run([_TSC, "--version"], capture_output=True, check=True, timeout=_PATIENCE_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"typescript does not run here: {error}")
    return _TSC


def test_every_type_fits(tsc: Path) -> None:
    done = subprocess.run([tsc, "-p", _HERE], cwd=ROOT, capture_output=True, text=True, timeout=_PATIENCE_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_script_of_the_page_is_left_out() -> None:
    scripts = [name for name in files() if name.startswith("memviz/ui/") and name.endswith(".js")]
    assert scripts
    assert [name for name in scripts if not text_of(name).startswith("// @ts-check\n")] == []
