"""The error without pyarrow names what it is needed for."""

from __future__ import annotations

from pathlib import Path

import pytest

from memviz.errors import UsageError
from memviz.ranks import parquet
from memviz.ranks.gather import Gathering, gathered
from tests.ranks.files import write_ranks


def test_a_table_without_pyarrow_is_refused_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    parquet._arrow.cache_clear()
    job = write_ranks(tmp_path / "job", 2)
    with pytest.raises(UsageError, match="needs pyarrow, which is not installed here: pip install pyarrow"):
        gathered(Gathering((str(job),), output=tmp_path / "ranks.parquet"))
    assert len(gathered(Gathering((str(job),), processes=1)).ranks) == 2
