"""Workers of Dask: a real cluster, a worker that is killed, a file that kills them, a place that fails now and then."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memviz import dask_client
from memviz.errors import UsageError
from memviz.ranks import gather
from memviz.ranks.gather import Gathering, gather_ranks, reduce_on_dask
from memviz.ranks.places import places_of
from memviz.ranks.row import FailedFile, RankRow, Reduced
from tests.dask_cluster import Cluster, dask_cluster
from tests.marks import slow
from tests.ranks.files import read, write_ranks
from tests.second_process import ROOT, memviz
from tests.traces import MiB

distributed = pytest.importorskip("distributed", reason="distributed is not installed")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two processes, as on two machines: they share nothing with this one but its files. One may die of a file."""
    with dask_cluster(tmp_path_factory.mktemp("cluster"), environment={"PYTHONPATH": str(ROOT)}) as made:
        yield made


@pytest.fixture(scope="module")
def other_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A worker in a folder of its own, where memviz is another version, or none."""
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "memviz").mkdir()
    (folder / "memviz" / "__init__.py").write_text("")
    with dask_cluster(folder, workers=1, environment={"PYTHONPATH": str(folder)}) as made:
        yield made


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = write_ranks(tmp_path / "job", 8, rank6=11 * MiB)
    (folder / "run.rank3.pickle").write_bytes(b"")
    return folder


@pytest.mark.parametrize("address", ["nonsense", *slow("", "tcp://127.0.0.1:x")])
def test_what_is_no_address_is_said_in_one_line(job: Path, address: str) -> None:
    done = memviz("ranks", job, "--scheduler", address)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"memviz: No scheduler answers at '{address}' (")
    assert done.stderr.endswith("Its address looks like tcp://host:8786.\n")
    assert done.stderr.count("\n") == 1


def test_whoever_takes_a_call_and_is_silent_is_no_scheduler(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_client, "_ANSWERS_WITHIN_SECONDS", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(UsageError, match="silent for 1 s"):
            gather_ranks(Gathering((str(job),), scheduler=address))


@pytest.mark.slow
def test_workers_say_what_this_machine_says(cluster: Any, job: Path) -> None:
    assert gather_ranks(Gathering((str(job),), scheduler=cluster.scheduler_address)) == read(job)


@pytest.mark.slow
def test_workers_without_this_memviz_are_sent_what_they_need(other_cluster: Any, job: Path) -> None:
    address = other_cluster.scheduler_address
    with distributed.Client(address, set_as_default=False) as client:
        client.wait_for_workers(1, timeout=600)
        assert gather_ranks(Gathering((str(job),), scheduler=address)) == read(job)
        assert "memviz-" in next(iter(client.run(memviz_at).values()))


@pytest.mark.slow
def test_a_worker_killed_half_way_costs_no_rank(cluster: Any, tmp_path: Path) -> None:
    folder = write_ranks(tmp_path / "job", 24)
    rows = reduce_on_dask(places_of([str(folder)]), cluster.scheduler_address)
    read_first = [next(rows) for _ in range(5)]
    with distributed.Client(cluster.scheduler_address, set_as_default=False) as client:
        os.kill(min(client.run(os.getpid).values()), signal.SIGKILL)
    all_rows = [*read_first, *rows]
    assert sorted(Path(row.place).name for row in all_rows if isinstance(row, RankRow)) == sorted(
        path.name for path in folder.iterdir()
    )


def killing(address: str, etag: str, size: int, device: str | None) -> Reduced:
    """End the worker's process, as the system may."""
    import os
    import signal

    from memviz.ranks.places import Place
    from memviz.ranks.reduce_rank import reduce_rank

    if "rank5" in address:
        os.kill(os.getpid(), signal.SIGKILL)
    return reduce_rank(Place(address, etag, size), device)


@pytest.mark.slow
def test_a_file_that_kills_every_worker_is_one_row(cluster: Any, tmp_path: Path) -> None:
    places = places_of([str(write_ranks(tmp_path / "job", 8))])
    rows = list(reduce_on_dask(places, cluster.scheduler_address, task=killing))
    (failed,) = (row for row in rows if isinstance(row, FailedFile))
    assert failed.place.endswith("rank5.pickle") and "was killed" in failed.reason
    assert len(rows) == 8


memviz_at = dask_client.by_value(lambda: __import__("memviz").__file__)


@pytest.mark.slow
def test_what_is_sent_to_workers_reads_a_rank_without_torch_and_gradio(tmp_path: Path, job: Path) -> None:
    """In a process that has numpy, and memviz from that file alone."""
    packed = tmp_path / "memviz.zip"
    gather._pack(packed, gather._light_files())
    assert packed.stat().st_size < 1 << 20
    with zipfile.ZipFile(packed) as file:
        assert not [name for name in file.namelist() if name.startswith(("memviz/ui", "memviz/runner"))]
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from memviz.ranks.places import Place\n"
        "from memviz.ranks.reduce_rank import reduce_rank\n"
        "import memviz\n"
        "heavy = {'torch', 'gradio', 'plotly', 'pandas', 'pyarrow', 'distributed', 'fsspec'} & set(sys.modules)\n"
        "print(reduce_rank(Place(sys.argv[2])).peak_bytes, sorted(heavy), sys.argv[1] in memviz.__file__)"
    )
    command = [sys.executable, "-c", program, str(packed), str(job / "run.rank0.pickle")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{120 * MiB} [] True\n", "")
