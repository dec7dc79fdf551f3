"""Many visitors of one page over HTTP, who open, look, replay and compare, and then leave.

    python -m tests.benchmarks.load [--visitors 100] [--events 100000] [--minutes 20] [--open] [--write]

Each visitor does what the page's own scripts do: loads the page, uploads two files in parts, listens, selects moments
of the first, replays it, compares it to the second, and stays until all are done. Up to `--acting` visitors act at the
same time, the others are idle. Seconds are measured to the complete answer. Memory is that of the server's process:
before (after one visitor, so that everything is imported), with all visitors, after three idle minutes, and after the
last has left and its session has expired. After `--minutes` unfinished visitors leave, and are not counted as finished.
With `--open` each uploads one file and is idle.
"""

import argparse
import asyncio
import json
import os
import pickle
import statistics
import time
import zlib
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from tests.benchmarks.readme import README, measured_on, write_table
from tests.server import Server, started
from tests.traces import alloc, frame, free, snapshot

STEPS = {
    "page": "the page",
    "open": "a file sent, read and drawn",
    "shown": "its words in the page",
    "offered": "what could be done, worked out once nobody waits for anything else",
    "look": "another moment looked at",
    "replay": "replayed, with its answer",
    "compare": "two compared",
}
_LATER = "offer"
"""The server answers it last of all, and no client waits for it."""
_TOO_MANY = 429
_CONFIG = "window.gradio_config = "
KEEP_SECONDS = 20
_SETTLED_SECONDS = 90
_RESTING_SECONDS = 180
_PART = 1 << 20
Seconds = dict[str, list[float]]
Turn = Callable[[Awaitable[Any]], Awaitable[Any]]


def made(events: int, *, more: int = 0) -> bytes:
    """A training-shaped snapshot: stacks of 30 frames, most of a step's memory freed in it."""
    stacks = [[frame(f"layer_{(i * 7 + j) % 97}", f"model_{j % 5}.py", 10 * j) for j in range(30)] for i in range(64)]
    found: list[dict[str, Any]] = []
    for i in range(events // 3):
        size, stack = 512 * (1 + (i * 37 + more) % 200), stacks[i % 64]
        found.append(alloc(i * 200_000, size, frames=stack, time_us=3 * i))
        # One in fifty stays, as weights do.
        if i % 50:
            found += free(i * 200_000, size, frames=stack, time_us=3 * i + 1)
    return pickle.dumps(snapshot(found))


class File:
    """Packed once, as every browser would pack it."""

    def __init__(self, name: str, raw: bytes) -> None:
        press = zlib.compressobj(1, wbits=-zlib.MAX_WBITS)
        self.name, self.size, self.packed = name, len(raw), press.compress(raw) + press.flush()


class Visitor:
    """A headless browser stand-in. Only selections are sent; all other state stays on the server."""

    def __init__(self, client: httpx.AsyncClient, number: int, seconds: Seconds) -> None:
        self._client = client
        self._session = f"visitor{number}x{os.getpid()}"
        self._seconds = seconds
        self._config: dict[str, Any] = {}
        self._to_come: list[asyncio.Task[None]] = []
        self._answers: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._waiting = 0
        self._line: asyncio.Task[None] | None = None

    async def comes(self) -> None:
        begun = time.monotonic()
        page = (await self._client.get("/")).raise_for_status().text
        # The rest of the page follows it in the same line.
        self._config = json.JSONDecoder().raw_decode(page.partition(_CONFIG)[2])[0]
        await self._event("load", None, None)
        self._seconds["page"].append(time.monotonic() - begun)

    async def stays(self) -> None:
        """The line that a page holds as long as it is open."""
        with suppress(httpx.HTTPError):
            async with self._client.stream("GET", f"/gradio_api/heartbeat/{self._session}") as line:
                async for _ in line.aiter_raw():
                    pass

    async def opens(self, file: File) -> str:
        begun = time.monotonic()
        said = {"name": file.name, "size": file.size, "packed": True}
        while (answer := await self._client.post("/gradio_api/memviz/readings", json=said)).status_code == _TOO_MANY:
            await asyncio.sleep(1)
        answer.raise_for_status()
        own = f"/gradio_api/memviz/readings/{answer.json()['ticket']}"
        _, heard = await asyncio.gather(self._sends(own, file), self._client.get(own))
        opened = _message(heard.content, "opened")
        self._seconds["open"].append(time.monotonic() - begun)
        await self._timed("shown", "click", "arrivals", {"stored": opened["stored"]})
        return str(opened["key"])

    async def _sends(self, own: str, file: File) -> None:
        for number, at in enumerate(range(0, len(file.packed), _PART)):
            part, last = file.packed[at : at + _PART], at + _PART >= len(file.packed)
            headers = {"memviz-part": str(number), "memviz-last": str(int(last))}
            (await self._client.post(own, content=part, headers=headers)).raise_for_status()

    async def looks_on(self) -> None:
        """Until all that follows by itself is there."""
        while self._to_come:
            await self._to_come.pop()

    async def looks(self, key: str, event: int) -> None:
        await self._timed("look", "select", "timeline", {"key": key, "at": event})

    async def replays(self) -> None:
        await self._timed("replay", "select", "tabs", {"index": 3, "value": "What if", "selected": True})

    async def compares(self) -> None:
        tab = next(each for each in self._config["components"] if each["props"].get("label") == "Compare")
        await self._timed("compare", "select", "", {"index": 1, "value": "Compare", "selected": True}, tab["id"])

    async def _timed(self, step: str, event: str, element: str, data: Any, id: int | None = None) -> None:
        begun = time.monotonic()
        await self._event(event, id if id is not None else self._id(element), data)
        self._seconds[step].append(time.monotonic() - begun)

    def _id(self, element: str) -> int:
        return next(each["id"] for each in self._config["components"] if each["props"].get("elem_id") == element)

    async def _event(self, event: str, id: int | None, data: Any) -> None:
        """Send an event and the requests that its state changes trigger, all at once like a browser."""
        wanted = [
            each
            for each in self._config["dependencies"]
            if each["backend_fn"] and any(kind == event and id in (None, target) for target, kind in each["targets"])
        ]
        later = [each for each in wanted if each["api_name"] == _LATER]
        self._to_come += [asyncio.create_task(self._offered(each, id, data)) for each in later]
        await asyncio.gather(*(self._follows(each, id, data) for each in wanted if each not in later))

    async def _follows(self, what: dict[str, Any], id: int | None, data: Any) -> None:
        for changed in await self._asks(what, id, data):
            await self._event("change", changed, None)

    async def _offered(self, what: dict[str, Any], id: int | None, data: Any) -> None:
        begun = time.monotonic()
        await self._follows(what, id, data)
        self._seconds["offered"].append(time.monotonic() - begun)

    async def _asks(self, what: dict[str, Any], id: int | None, data: Any) -> list[int]:
        body = {
            "data": [None] * len(what["inputs"]),
            "fn_index": what["id"],
            "session_hash": self._session,
            "trigger_id": id,
            "event_data": data,
        }
        if not what["queue"]:
            (await self._client.post("/gradio_api/run/predict", json=body)).raise_for_status()
            return []
        begun = await self._client.post("/gradio_api/queue/join", json=body)
        begun.raise_for_status()
        answer = self._answer(begun.json()["event_id"])
        self._waiting += 1
        if self._line is None or self._line.done():
            self._line = asyncio.create_task(self._listens())
        said = await answer
        self._waiting -= 1
        if not said["success"]:
            raise SystemExit(f"{what['api_name']} failed: {said['output']}")
        return list(said["output"].get("changed_state_ids") or [])

    def _answer(self, event: str) -> asyncio.Future[dict[str, Any]]:
        """Return the future of an answer, which may arrive before its event number does."""
        return self._answers.setdefault(event, asyncio.get_running_loop().create_future())

    async def _listens(self) -> None:
        """Listen on one stream for all requests of a visitor; the server closes it after the last answer."""
        address = f"/gradio_api/queue/data?session_hash={self._session}"
        try:
            while self._waiting:
                async with self._client.stream("GET", address) as messages:
                    async for line in messages.aiter_lines():
                        said = json.loads(line.removeprefix("data: ")) if line else {}
                        if said.get("msg") == "process_completed":
                            self._answer(said["event_id"]).set_result(said)
        except httpx.HTTPError as fault:
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(fault)


def _message(raw: bytes, kind: str) -> dict[str, Any]:
    while raw:
        length = int.from_bytes(raw[:4], "little")
        header: dict[str, Any] = json.loads(raw[4 : 4 + length])
        if header["kind"] == kind:
            return header
        raw = raw[4 + length + header["bytes"] :]
    raise SystemExit(f"The server never said {kind}.")


async def _one(
    visitor: Visitor, files: list[File], events: int, turn: Callable[[Awaitable[Any]], Awaitable[Any]]
) -> None:
    await turn(visitor.comes())
    keys = [await turn(visitor.opens(file)) for file in files]
    if len(files) == 1:
        return await visitor.looks_on()
    for i in range(3):
        await turn(visitor.looks(keys[-1], events * (i + 1) // 5))
    await turn(visitor.replays())
    await turn(visitor.compares())
    await visitor.looks_on()


async def _all(
    server: Server, count: int, files: list[File], events: int, acting: int, most_seconds: float
) -> tuple[Seconds, tuple[int, int], int]:
    """Return times, the server's memory then and later, and how many visitors finished in time."""
    seconds: Seconds = defaultdict(list)
    gate = asyncio.Semaphore(acting)

    async def turn(step: Awaitable[Any]) -> Any:
        async with gate:
            return await step

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.address, timeout=None, limits=limits) as client:
        visitors = [Visitor(client, number, seconds) for number in range(count)]
        lines = [asyncio.create_task(visitor.stays()) for visitor in visitors]
        work = [asyncio.create_task(_one(visitor, files, events, turn)) for visitor in visitors]
        done, late = await asyncio.wait(work, timeout=most_seconds)
        for each in done:
            each.result()
        for each in late:
            each.cancel()
        memory = memory_of(server)
        await asyncio.sleep(_RESTING_SECONDS)
        resting = memory_of(server)
        for each in lines:
            each.cancel()
        await asyncio.gather(*late, *lines, return_exceptions=True)
    return seconds, (memory, resting), len(done)


def memory_of(server: Server) -> int:
    """Return the resident bytes of the server's process."""
    text = Path(f"/proc/{server.pid}/status").read_text(encoding="utf-8")
    return 1024 * int(next(line for line in text.splitlines() if line.startswith("VmRSS")).split()[1])


def _settled(server: Server) -> int:
    """Return the server's memory once it no longer falls."""
    lowest, since = memory_of(server), time.monotonic()
    while time.monotonic() - since < _SETTLED_SECONDS:
        time.sleep(1)
        now = memory_of(server)
        if now < 0.99 * lowest:
            lowest, since = now, time.monotonic()
    return memory_of(server)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.load", description=__doc__.split("\n\n")[0])
    parser.add_argument("--visitors", type=int, default=100)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--acting", type=int, default=8, help="how many do something at the same time")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--open", action="store_true", help="one file each, and nothing is done but opening it")
    parser.add_argument("--note", default="", help="what else the machine did")
    parser.add_argument("--write", action="store_true", help=f"into {README.name}")
    args = parser.parse_args()
    files = [File("first.pickle", made(args.events)), File("second.pickle", made(args.events, more=11))]
    files = files[:1] if args.open else files

    def visit(server: Server, count: int) -> tuple[Seconds, tuple[int, int], int]:
        return asyncio.run(_all(server, count, files, args.events, args.acting, 60 * args.minutes))

    with started({"MEMVIZ_KEEP_SECONDS": str(KEEP_SECONDS)}) as server:
        visit(server, 1)
        before = _settled(server)
        begun = time.monotonic()
        seconds, during, done = visit(server, args.visitors)
        took = time.monotonic() - begun - _RESTING_SECONDS
        after = _settled(server)
    table = _table(args, seconds, (before, *during, after), took, files, done)
    print(table)
    if args.write:
        write_table("open" if args.open else "load", table)


def _table(
    args: Any, seconds: Seconds, memory: tuple[int, int, int, int], took: float, files: list[File], done: int
) -> str:
    before, during, resting, after = memory
    mib, sent = 1 << 20, sum(file.size for file in files)
    visitors = max(len(seconds["open"]) / len(files), 1)
    each_one, each_resting = (during - before) / visitors, (resting - before) / visitors
    rows = [
        f"| {words} | {len(seconds[step])} | {statistics.median(seconds[step]):.2f} | {_p95(seconds[step]):.2f} |"
        for step, words in STEPS.items()
        if seconds[step]
    ]
    note = f" {args.note}" if args.note else ""
    return "\n".join(
        [
            f"{measured_on()}{note} {done} of {args.visitors} visitors came to their end within {took:.0f} s, "
            f"{args.acting} acting at a time, each with {'one file' if len(files) == 1 else 'two files'} of "
            f"{args.events:,} events.",
            "",
            "| what a visitor does | times | p50, s | p95, s |",
            "|---|---|---|---|",
            *rows,
            "",
            "| memory of the server | MiB |",
            "|---|---|",
            f"| before | {before / mib:,.0f} |",
            f"| with all of them | {during / mib:,.0f} |",
            f"| a visitor, whose files have {sent / mib:.0f} MiB | {each_one / mib:.1f} |",
            f"| when nobody has done anything for {_RESTING_SECONDS // 60} minutes | {resting / mib:,.0f} |",
            f"| a visitor then | {each_resting / mib:.1f} |",
            f"| after the last has left | {after / mib:,.0f} ({after / before:.2f} times before) |",
        ]
    )


def _p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1] if len(values) > 1 else values[0]


if __name__ == "__main__":
    main()
