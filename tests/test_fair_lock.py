"""The fair lock: turns alternate between owners."""

import threading

import pytest

from memviz.fair_lock import FairLock
from tests.runner.processes import PATIENCE_SECONDS, wait_until


def test_turns_come_in_order_and_never_together() -> None:
    line, seen, inside = FairLock(), [], []
    first_in, let_go = threading.Event(), threading.Event()

    def use(name: str) -> None:
        with line.turn() as mine:
            assert mine
            inside.append(name)
            assert inside == [name]
            first_in.set()
            let_go.wait(600)
            seen.append(name)
            inside.remove(name)

    threads = []
    for name in "abc":
        threads.append(threading.Thread(target=use, args=(name,)))
        threads[-1].start()
        first_in.wait(600)
        wait_until(lambda: len(line._ring) == len(threads) - 1)
    let_go.set()
    for thread in threads:
        thread.join(600)
    assert seen == ["a", "b", "c"]


def test_those_who_wait_hear_how_many_are_before_them_and_can_give_up() -> None:
    line, told, stop = FairLock(), [], threading.Event()
    with line.turn() as mine:
        assert mine

        def wait() -> None:
            with line.turn(told.append, stop.is_set) as got:
                told.append(got)

        thread = threading.Thread(target=wait)
        thread.start()
        wait_until(lambda: told)
        stop.set()
        thread.join(600)
    assert told == [1, False]
    with line.turn() as mine:
        assert mine


def test_a_turn_ends_with_an_exception_too() -> None:
    line = FairLock()
    with pytest.raises(RuntimeError), line.turn():
        raise RuntimeError
    with line.turn() as mine:
        assert mine


class Busy:
    """A device in use, and the owners queued for it; `order` lists their turns."""

    def __init__(self, *served: str) -> None:
        """`served` had a turn each before."""
        self.line = FairLock()
        self.order: list[str] = []
        self._left: dict[str, int] = {}
        self._threads: list[threading.Thread] = []
        self._done = threading.Event()
        self._begun = threading.Event()
        for each in served:
            with self.line.turn(owner=each):
                pass
        self._threads.append(threading.Thread(target=self._hold))
        self._threads[0].start()
        assert self._begun.wait(PATIENCE_SECONDS)

    def _hold(self) -> None:
        with self.line.turn():
            self._begun.set()
            self._done.wait(PATIENCE_SECONDS)

    def waits(self, owner: str, turns: int = 1, again: bool = False) -> None:
        """Queue an owner's turns; with `again`, each only after the one before is over."""
        for _ in range(1 if again else turns):
            there = threading.Event()
            target = self._again if again else self._use
            arguments = (owner, there, turns) if again else (owner, there)
            self._threads.append(threading.Thread(target=target, args=arguments))
            self._threads[-1].start()
            assert there.wait(PATIENCE_SECONDS)

    def _use(self, owner: str, there: threading.Event, left: int = 0) -> None:
        with self.line.turn(lambda _: there.set(), owner=owner) as mine:
            assert mine
            self._left[owner] = left
            # Owners with turns left queue again before this turn ends, even if their threads are slow.
            again = [other for other, more in self._left.items() if more and other != owner]
            wait_until(lambda: all(map(self.line.waiting, again)))
            self.order.append(owner)

    def _again(self, owner: str, there: threading.Event, turns: int) -> None:
        for left in reversed(range(turns)):
            self._use(owner, there, left)

    def ends(self) -> list[str]:
        self._done.set()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)
        return self.order


MASKS = [f"mask {number}" for number in range(5)]


@pytest.mark.parametrize(
    ("served", "queued", "first"),
    [
        ([], {"ann": 50, "bob": 1, "eve": 2}, ["ann", "bob", "eve", "ann", "eve", *["ann"] * 48]),
        (["ann"] * 10, {"ann": 3, "new": 1}, ["ann", "new", "ann", "ann"]),
        ([], {"ann": 1, **dict.fromkeys(MASKS, 1), "bob": 1}, ["ann", *MASKS, "bob"]),
        (["ann"], {"mask 0": 1, "ann": 1, **dict.fromkeys(MASKS[1:], 1)}, ["mask 0", "ann"]),
    ],
    ids=["fifty turns wait behind each other's first", "no debts", "new names gain nothing", "nor keep others out"],
)
def test_turns_alternate_between_owners_in_the_order_they_came(
    served: list[str], queued: dict[str, int], first: list[str]
) -> None:
    busy = Busy(*served)
    for owner, turns in queued.items():
        busy.waits(owner, turns)
    order = busy.ends()
    assert order[: len(first)] == first and len(order) == sum(queued.values())


def test_turns_asked_for_one_after_the_other_alternate_with_those_of_others() -> None:
    busy = Busy()
    busy.waits("ann", 3, again=True)
    busy.waits("bob", 3)
    assert busy.ends() == ["ann", "bob", "ann", "bob", "ann", "bob"]


def test_those_who_wait_hear_the_number_of_turns_before_theirs() -> None:
    line, told = FairLock(), {}
    let_go = threading.Event()

    def wait(name: str, owner: str, there: threading.Event) -> None:
        def tell(before: int) -> None:
            told.setdefault(name, before)
            there.set()

        with line.turn(tell, let_go.is_set, owner=owner):
            pass

    threads = []
    with line.turn(owner="ann"):
        for name in ("ann 1", "ann 2", "bob 1", "ann 3", "bob 2", "eve 1"):
            there = threading.Event()
            threads.append(threading.Thread(target=wait, args=(name, name.split()[0], there)))
            threads[-1].start()
            assert there.wait(PATIENCE_SECONDS)
        let_go.set()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    # Inside is ann, who comes behind everybody then: bob, ann, bob, ann, ann, as far as they are there.
    assert told == {"ann 1": 1, "ann 2": 2, "bob 1": 1, "ann 3": 4, "bob 2": 3, "eve 1": 2}
    assert (line._ring, line._inside) == ({}, [])


def test_of_several_places_the_next_goes_to_who_has_fewest_and_none_is_lost() -> None:
    lock, done = FairLock(2), []
    first, second = lock.of("many"), lock.of("many")
    first.acquire()
    second.acquire()
    one_at_a_time = threading.Lock()

    def work(owner: str) -> None:
        with lock.of(owner), one_at_a_time:
            done.append(owner)

    threads = []
    for owner in ("many", "many", "many", "one"):
        threads.append(threading.Thread(target=work, args=[owner]))
        threads[-1].start()
        wait_until(lambda: sum(map(len, lock._ring.values())) == len(threads))
    first.release()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    second.release()
    assert done == ["one", "many", "many", "many"]
    assert (lock._ring, lock._inside) == ({}, [])


def test_a_free_place_is_taken_although_another_is_not_free() -> None:
    lock = FairLock(2)
    with lock.of("ann"), lock.turn(owner="bob") as mine:
        assert mine
