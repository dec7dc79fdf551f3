"""`python -m memviz.runner.published SEED`: a line of JSON for each row, as soon as it is computed."""

from __future__ import annotations

import json
import sys

from memviz.runner.published import SEEDS


def main(name: str) -> None:
    seed = next(each for each in SEEDS if each.name == name)
    for row in seed.rows(lambda case: None):
        sys.stdout.write(json.dumps(seed.as_json(row)) + "\n")
        sys.stdout.flush()


main(sys.argv[1])
