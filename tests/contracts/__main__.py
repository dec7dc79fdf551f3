"""Rewrite the golden files, or those with a given word in their name: `python -m tests.contracts ranks`."""

import sys
import time

from tests.contracts.cases import GOLDEN, RELEASES, all_cases
from tests.contracts.workplace import Workplace, releases

wanted = sys.argv[1:]
GOLDEN.mkdir(exist_ok=True)
with Workplace() as place:
    for case in all_cases():
        if not wanted or any(word in case.name for word in wanted):
            begun = time.perf_counter()
            (GOLDEN / case.name).write_text(case.text(place), encoding="utf-8", newline="\n")
            sys.stdout.write(f"{time.perf_counter() - begun:5.1f} s  {case.name}\n")
            sys.stdout.flush()
    RELEASES.write_text(place.json(releases()), encoding="utf-8", newline="\n")
