"""Many files on many machines: workers of Dask, of which nothing is known but their scheduler's address.

What a worker needs beside Python and numpy goes there with the question: the light parts of memviz, some 200 KB. So
nothing has to be installed there, and all of them read by the same rules; who has the same installed keeps it. A
worker that dies is Dask's to replace; its files are read by the others. Places are opened where the workers are: a
folder must be one that they see too.
"""

from __future__ import annotations

import hashlib
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from memviz.dask_client import by_value, dask_client
from memviz.errors import UsageError, first_line
from memviz.ranks.places import Place
from memviz.ranks.row import FailedFile, Reduced

Task = Callable[[str, str, int, str | None], Reduced]
_PARTS = ("__init__.py", "c_memory.py", "errors.py", "units.py", "trace", "analysis", "ranks")
_AHEAD = 4
"""Files handed out for each thread of a worker: none waits for the next, and a scheduler never holds them all."""
_KILLED = "Reading it ended the workers that tried, one after the other."


def read_rank(address: str, etag: str, size: int, device: str | None) -> Reduced:
    """What a worker does. It travels as code, since the scheduler in between need not have memviz."""
    from memviz.ranks.places import Place
    from memviz.ranks.reduce_rank import reduce_rank

    return reduce_rank(Place(address, etag, size), device)


def reduced_there(
    places: Sequence[Place], address: str, device: str | None = None, *, task: Task = read_rank
) -> Iterator[Reduced]:
    """As they become ready, in any order."""
    if not places:
        return
    with dask_client(address) as client, _our_code(client):
        yield from _handed_out(client, places, device, by_value(task))


@contextmanager
def _our_code(client: Any) -> Iterator[None]:
    """On every worker, and on those that come later; unless they have the same already."""
    from distributed.diagnostics.plugin import UploadFile

    files = _light_files()
    digest = _digest(files)
    if all(client.run(by_value(_installed), _PARTS, digest).values()):
        yield
        return
    name = f"memviz-{digest}"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.zip"
        _pack(path, files)
        try:
            client.register_plugin(UploadFile(str(path)), name=name)
        except Exception as error:
            # Whatever a worker raises comes back as it is.
            raise UsageError(f"The workers cannot take what they need to read ({first_line(error)}).") from None
    try:
        yield
    finally:
        with suppress(Exception):
            client.unregister_worker_plugin(name)


def _installed(parts: Sequence[str], digest: str) -> bool:
    """On a worker: whether what is installed there is what would be sent. Travels as code, as `read_rank` does."""
    import hashlib
    import importlib.util
    from pathlib import Path

    spec = importlib.util.find_spec("memviz")
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return False
    package = Path(spec.origin).parent
    files = [path for part in parts for path in sorted([package / part, *(package / part).rglob("*.py")])]
    contents = [path.read_bytes() for path in files if path.suffix == ".py" and path.is_file()]
    return hashlib.sha256(b"".join(contents)).hexdigest()[:16] == digest


def _light_files() -> list[tuple[str, bytes]]:
    package = Path(__file__).parents[1]
    files = [path for part in _PARTS for path in sorted([package / part, *(package / part).rglob("*.py")])]
    return [(path.relative_to(package.parent).as_posix(), path.read_bytes()) for path in files if path.suffix == ".py"]


def _digest(files: Sequence[tuple[str, bytes]]) -> str:
    return hashlib.sha256(b"".join(content for _, content in files)).hexdigest()[:16]


def _pack(path: Path, files: Sequence[tuple[str, bytes]]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in files:
            packed.writestr(name, content)


def _handed_out(client: Any, places: Sequence[Place], device: str | None, task: Any) -> Iterator[Reduced]:
    threads = max(sum(client.nthreads().values()), 1)
    suspects: list[Place] = []
    yield from _side_by_side(client, places, device, task, many=threads * _AHEAD, suspects=suspects)
    for place in suspects:
        # Alone: what a worker was given beside the one that ended it is suspected by Dask as well.
        alone: list[Place] = []
        yield from _side_by_side(client, [place], device, task, many=1, suspects=alone)
        yield from (FailedFile(one.address, _KILLED, one.etag, one.size) for one in alone)


def _side_by_side(
    client: Any, places: Sequence[Place], device: str | None, task: Any, *, many: int, suspects: list[Place]
) -> Iterator[Reduced]:
    """So many of them under way at a time; those with which workers died end in `suspects`."""
    from distributed import as_completed
    from distributed.scheduler import KilledWorker

    waiting = iter(places)
    place_of = {}

    def submitted(count: int) -> list[Any]:
        futures = []
        for place in islice(waiting, count):
            future = client.submit(task, place.address, place.etag, place.size, device, pure=False)
            place_of[future.key] = place
            futures.append(future)
        return futures

    under_way = as_completed(submitted(many), loop=client.loop)
    for future in under_way:
        place = place_of.pop(future.key)
        try:
            yield _result(future)
        except KilledWorker:
            suspects.append(place)
        future.release()
        for another in submitted(1):
            under_way.add(another)


def _result(future: Any) -> Reduced:
    from distributed import CancelledError

    try:
        row: Reduced = future.result()
    except CancelledError:
        raise UsageError("The scheduler has gone, or has cancelled what it was asked.") from None
    except ImportError as error:
        raise UsageError(f"The workers cannot read snapshots ({first_line(error)}); they need numpy.") from None
    return row
