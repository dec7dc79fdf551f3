"""The same file in several programs: on another machine, in another folder.

Two files are the same if they end alike: as many of the last parts of their paths are compared as it takes to
tell the files of each single trace apart. So the machine's part of a path (home, checkout, virtual environment)
never counts, and a file that lies at the same path in both always matches.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

Place = tuple[str, str]
"""Path and function."""


def common_tails(sides: Sequence[Collection[Place]]) -> dict[Place, str]:
    """For each place the part of its path that counts."""
    alike: dict[Place, set[str]] = {}
    for path, function in (place for side in sides for place in side):
        alike.setdefault((path.rpartition("/")[2], function), set()).add(path)
    tails: dict[Place, str] = {}
    for (_, function), paths in alike.items():
        parts = {path: [part for part in path.split("/") if part] for path in paths}
        depth = _depth(parts, [[path for path in paths if (path, function) in side] for side in sides])
        tails.update(((path, function), "/".join(parts[path][-depth:])) for path in paths)
    return tails


def _depth(parts: dict[str, list[str]], sides: Sequence[Collection[str]]) -> int:
    """How many last parts tell the paths of each side apart."""
    deepest = max(map(len, parts.values()), default=1)
    for depth in range(1, deepest):
        if all(len({tuple(parts[path][-depth:]) for path in side}) == len(side) for side in sides):
            return depth
    return max(deepest, 1)
