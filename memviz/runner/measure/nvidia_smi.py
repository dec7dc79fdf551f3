"""The driver's own command, so that nothing has to be installed and nothing of it can end this process."""

from __future__ import annotations

import shutil
import subprocess

_PATIENCE_SECONDS = 20.0


def nvidia_smi(*arguments: str) -> str | None:
    """What it prints; None where there is none, or where it fails."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    try:
        done = subprocess.run(
            [command, *arguments, "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=_PATIENCE_SECONDS, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
