"""A search as a process of its own: `python -m memviz.runner.fit.driver`, fed and read by `jobs/searches`.

One line of JSON comes in: what is searched for. Lines of JSON go out, one for each thing that happens; before each
prediction one that asks for a turn, and it is made when a line comes back.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from memviz.errors import MemvizError
from memviz.runner.request import Request


def main() -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    driver = _Driver(out)
    order = json.loads(sys.stdin.readline())
    threading.Thread(target=driver.listen, daemon=True).start()
    try:
        driver.search(order)
    except MemvizError as error:
        driver.send("failed", text=str(error))
    except Exception as error:
        driver.send("failed", text=f"{type(error).__name__}: {error}")


class _Driver:
    def __init__(self, out: Any) -> None:
        self._out = out
        self._lock = threading.Lock()
        self._turn = threading.Semaphore(0)

    def send(self, kind: str, **rest: Any) -> None:
        with self._lock:
            self._out.write(json.dumps({"kind": kind, **rest}) + "\n")
            self._out.flush()

    def listen(self) -> None:
        """Release one turn per line of stdin; exit the process when the client closes it."""
        for _ in sys.stdin:
            self._turn.release()
        os._exit(0)

    @contextmanager
    def turn(self) -> Iterator[None]:
        self.send("turn")
        self._turn.acquire()
        try:
            yield
        finally:
            self.send("over")

    def search(self, order: Mapping[str, Any]) -> None:
        from memviz.runner.fit.fit import find_fit, fit_json, trial_json
        from memviz.runner.fit.predictions import Predictor
        from memviz.runner.fit.search import Stop

        request = Request.from_json(order["request"])

        def tell(trial: Any, done: int, of: int) -> None:
            self.send("way", way=None if trial is None else trial_json(trial), done=done, of=of)

        with Predictor(processes=1, timeout=order["seconds"], turn=self.turn) as predictor:
            answer = find_fit(
                request,
                predictor,
                keep=order["keep"],
                largest=order["largest"],
                grid=order["grid"],
                stop=Stop(order["time_limit"]),
                tell=tell,
                tell_largest=lambda value: self.send("value", value=value),
            )
        self.send("answer", answer=fit_json(answer))


if __name__ == "__main__":
    main()
