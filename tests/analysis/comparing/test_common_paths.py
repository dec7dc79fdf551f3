"""The same place in the source of two programs."""

from __future__ import annotations

import pytest

from memviz.analysis.comparing.matching import common_tails

F = "f"


@pytest.mark.parametrize(
    ("sides", "tails"),
    [
        # The same checkout in two homes.
        ([[("/home/a/p/x.py", F)], [("/home/b/p/x.py", F)]], ["x.py", "x.py"]),
        # One trace has two files of that name, so that more of the path counts everywhere.
        (
            [[("/home/a/p/x.py", F), ("/home/a/q/x.py", F)], [("/srv/p/x.py", F)]],
            ["p/x.py", "q/x.py", "p/x.py"],
        ),
        # Another function is another place, and does not count for this one.
        ([[("/a/p/x.py", F), ("/a/q/x.py", "g")], [("/b/p/x.py", F)]], ["x.py", "x.py", "x.py"]),
        # Below Python there is no path.
        ([[("", "MmBackward0")], [("", "MmBackward0")]], ["", ""]),
        # A whole path that is the end of another.
        ([[("/x.py", F), ("/a/x.py", F)], [("/a/x.py", F)]], ["x.py", "a/x.py", "a/x.py"]),
        ([[], []], []),
    ],
)
def test_places_are_told_apart_by_as_little_as_it_takes(sides, tails):
    found = common_tails(sides)
    assert [found[place] for side in sides for place in side] == tails
