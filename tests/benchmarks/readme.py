"""Tables that the benchmarks write into their README, between markers."""

import os
import platform
from datetime import date
from pathlib import Path

README = Path(__file__).parent / "README.md"


def measured_on() -> str:
    machine = f"CPython {platform.python_version()}, {os.cpu_count()} cores, {platform.system()}"
    return f"Measured on {date.today():%-d %B %Y}, {machine}."


def write_table(name: str, table: str) -> None:
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    text = README.read_text(encoding="utf-8")
    before, after = text[: text.index(begin) + len(begin)], text[text.index(end) :]
    README.write_text(f"{before}\n{table}\n{after}", encoding="utf-8")
