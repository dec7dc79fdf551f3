"""The unpickler reads plain data of every protocol, and nothing else, within bounds."""

import collections
import copyreg
import io
import pickle
import pickletools
import struct
import sys
import tracemalloc
from threading import RLock, Thread

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.errors import TraceError
from memviz.trace.intern import Interner, distinct, first_of_each, is_among
from memviz.trace.limits import Budget, Limits
from memviz.trace.unpickle import unpickle
from memviz.trace.unpickle.rows import translated
from memviz.trace.unpickle.stream import WINDOW

SMALL = Limits(memory_bytes=64 << 20, items=1_000_000, events=100_000, depth=32)


def read(raw: bytes, limits: Limits = SMALL) -> object:
    return unpickle(io.BytesIO(raw), Interner(Budget(limits)))


def refusal(raw: bytes, limits: Limits = SMALL) -> str:
    with pytest.raises(TraceError) as caught:
        read(raw, limits)
    return str(caught.value)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**400), 2**400)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary(max_size=300),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5) | st.tuples(inner, inner)
    ),
    max_leaves=20,
)


@pytest.mark.parametrize("protocol", range(6))
@given(value=plain)
def test_plain_data_of_every_protocol_is_read_as_it_was_written(value: object, protocol: int) -> None:
    # Protocols 0 to 2 have no bytes: pickle calls a codec, or the class, for them, and calls are refused.
    raw = pickle.dumps(value, protocol)
    called = [str(name) for opcode, name, _ in pickletools.genops(raw) if opcode.name == "GLOBAL"]
    if called:
        assert called[0].replace(" ", ".") in refusal(raw)
    else:
        assert read(raw) == value


def test_shared_objects_stay_shared() -> None:
    frame = {"name": "f"}
    first, second = read(pickle.dumps([[frame], [frame]]))
    assert first[0] is second[0]


def test_pickles_of_python_2_are_read() -> None:
    assert read(b"(dp0\nS'a'\np1\nI01\nsS'b'\nL12L\nsS'c'\nV\\u20ac\nsS'd'\nF1.5\ns.") == {
        "a": True,
        "b": 12,
        "c": "€",
        "d": 1.5,
    }


def test_objects_larger_than_a_frame_stand_outside_of_frames() -> None:
    value = ["x" * 300_000, {"a": "y" * 70_000}, b"z" * 9_000_000, list(range(50_000))]
    assert read(pickle.dumps(value, 4), Limits()) == value


@pytest.mark.slow
def test_pickles_longer_than_a_window_are_read_whole() -> None:
    value = [{"name": f"f{i}" * 30, "line": i, "big": 2**40 + i} for i in range(50_000)]
    for protocol in (2, 4):
        raw = pickle.dumps(value, protocol)
        assert len(raw) > 1.5 * WINDOW
        assert read(raw, Limits()) == value


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("a class was resolved",)


class Local:
    pass


class Persistent(pickle.Pickler):
    def persistent_id(self, obj: object) -> object:
        return "id" if obj == "mark" else None


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "value", [Evil(), Local(), Local, print, collections.OrderedDict(a=1), {1, 2}, frozenset([3]), 1j]
)
def test_nothing_but_plain_data_is_made(value: object, protocol: int, capsys: pytest.CaptureFixture[str]) -> None:
    refusal(pickle.dumps({"segments": [value]}, protocol))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("protocol", [0, 2])
def test_persistent_ids_are_refused(protocol: int) -> None:
    out = io.BytesIO()
    Persistent(out, protocol).dump(["mark"])
    assert "a persistent id" in refusal(out.getvalue())


def test_extensions_are_refused_even_where_this_process_knows_them() -> None:
    copyreg.add_extension("builtins", "print", 240)
    try:
        raw = pickle.dumps(print, 2)
        assert pickle.loads(raw) is print  # now it is in the cache, which skips find_class
        assert "an extension" in refusal(raw)
    finally:
        copyreg.remove_extension("builtins", "print", 240)
        copyreg.clear_extension_cache()


# Each list holds the one before it, by its place in the memo.
LINKS = b"".join(b"]r" + struct.pack("<I", i + 1) + b"j" + struct.pack("<I", i) + b"a" for i in range(99))


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (pickle.dumps(print), "the class builtins.print"),
        (pickle.dumps(collections.OrderedDict(weight=1)), "It is a model checkpoint or another program's object"),
        (pickle.dumps({(1, 2): 3}), "A key"),
        (b"\x80\x04\xff.", "byte 2 is no known operation"),
        (b"\x80\x09.", "protocol 9"),
        (b"\x80\x04" + b"(" * 1_000_000 + b".", "It nests deeper"),
        (b"\x80\x04" + b"]" * 200_000 + b"a" * 199_999 + b".", "It nests deeper"),
        (b"\x80\x04)" + b"\x85" * 1_000_000 + b".", "It nests deeper than 32"),
        (b"\x80\x02(]q\x00" + LINKS + b"l.", "It nests deeper than 32"),
    ],
    ids=["class", "checkpoint", "key", "operation", "protocol", "marks", "lists", "tuples", "lists by reference"],
)
def test_what_is_refused_is_named(raw: bytes, words: str) -> None:
    assert words in refusal(raw)


# -- bombs: each is a few bytes, or few for what it would unfold to ------------------------------------


def test_a_huge_place_in_the_memo_costs_nothing() -> None:
    assert read(b"\x80\x02}r\xff\xff\xff\xff.") == {}


@pytest.mark.slow
@pytest.mark.parametrize("opcode", [b"}", b"]", b"N", b"K\x00", b"K\x00\x94"])
def test_objects_that_are_never_put_anywhere_are_counted(opcode: bytes) -> None:
    raw = b"\x80\x04(" + opcode * 1_000_000
    assert "bytes of memory" in refusal(raw, Limits(memory_bytes=5 << 20))


def test_as_many_items_as_are_allowed_are_read_and_one_more_is_not() -> None:
    values = list(range(1000))
    assert read(pickle.dumps(values), Limits(items=1000)) == values
    assert "999" in refusal(pickle.dumps(values), Limits(items=999))


def test_nesting_is_read_as_deep_as_is_allowed_and_no_deeper() -> None:
    nested: list[object] = []
    for _ in range(31):
        nested = [nested]
    assert read(pickle.dumps(nested)) == nested
    assert "It nests deeper than 32" in refusal(pickle.dumps([nested]))


@pytest.mark.slow
def test_lists_that_hold_no_others_cost_nothing_for_their_depth() -> None:
    rows = [[number] for number in range(100_000)]
    # 13 MiB are enough. A place among the depths is counted as 100 bytes, which would be 9.5 MiB more.
    assert read(pickletools.optimize(pickle.dumps(rows)), Limits(memory_bytes=18 << 20)) == rows


@pytest.mark.parametrize(
    "head", [b"\x8d" + struct.pack("<Q", 2**40), b"\x8e" + struct.pack("<Q", 2**62), b"X\xff\xff\xff\xff"]
)
def test_a_length_without_its_bytes_allocates_nothing(head: bytes) -> None:
    tracemalloc.start()
    refusal(b"\x80\x04" + head + b"abc.")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 64 << 20


@pytest.mark.parametrize("number", [b"L" + b"9" * 5000 + b"L\n", b"\x8b\xff\xff\xff\x7f", b"\x8a\xff" + b"\x01" * 255])
def test_huge_numbers_are_refused(number: bytes) -> None:
    assert "number" in refusal(b"\x80\x04" + number + b".")


def test_reading_takes_no_longer_than_allowed() -> None:
    assert "takes longer than 1e-09 seconds" in refusal(pickle.dumps([]), Limits(seconds=1e-9))


def test_references_that_multiply_are_not_unfolded() -> None:
    value: list[object] = []
    for _ in range(25):
        value = [value, value]
    assert isinstance(read(pickle.dumps(value)), list)


@given(st.lists(st.integers(-5, 5) | st.sampled_from([4095, 4096, 2**62, -(2**63)]), max_size=12))
def test_integers_are_as_numpy_finds_them(numbers):
    column = np.array(numbers, dtype=np.int64)
    assert distinct(column).tolist() == sorted(set(numbers))


@pytest.mark.parametrize("kind", [np.uint8, np.int32, np.int64, np.bool_])
@pytest.mark.parametrize("count", [0, 1, 9])
def test_the_kind_of_number_stays(kind, count):
    column = (np.arange(count) % 3).astype(kind)
    assert distinct(column).dtype == np.unique(column).dtype
    assert distinct(column).tolist() == np.unique(column).tolist()


_NUMBERS = st.integers(-3, 12) | st.sampled_from([300, 4095, 4096, 2**62, -(2**63)])


@given(st.lists(_NUMBERS, max_size=12), st.lists(_NUMBERS, max_size=24))
def test_what_is_among_others_is_as_numpy_finds_it(numbers, wanted):
    columns = np.array(numbers, dtype=np.int64), np.array(wanted, dtype=np.int64)
    assert is_among(*columns).tolist() == np.isin(*columns).tolist()


@given(st.lists(st.integers(0, 255), max_size=12), st.lists(st.integers(0, 600), max_size=24))
def test_so_it_is_of_small_numbers(numbers, wanted):
    column = np.array(numbers, dtype=np.uint8)
    assert is_among(column, wanted).tolist() == np.isin(column, wanted).tolist()


_HASHES = st.integers(0, 9) | st.integers(0, 2**64 - 1) | st.sampled_from([2**63, 2**63 + 1, 2**64 - 1])


@given(st.lists(_HASHES, max_size=40))
def test_each_finds_the_first_that_is_the_same(numbers):
    """Also where they share a place in the table, as those below ten do."""
    hashes = np.array(numbers, dtype=np.uint64)
    assert first_of_each(hashes).tolist() == [numbers.index(number) for number in numbers]


@given(st.lists(_NUMBERS, max_size=24))
def test_each_different_value_is_translated_once(numbers):
    asked: list[int] = []

    def translate(value: int) -> int:
        asked.append(value)
        return value % 1000 - 7

    found = translated(np.array(numbers, dtype=np.int64), translate)
    assert found.tolist() == [number % 1000 - 7 for number in numbers]
    assert asked == sorted(set(numbers))


def test_threads_that_share_an_interner_get_numbers_of_their_own() -> None:
    interner, stacks = Interner(lock=RLock()), {}

    def work(thread: int) -> None:
        for line in range(500):
            frame = interner.frame({"name": f"{thread} {line}", "filename": "train.py", "line": line})
            stacks[f"{thread} {line}"] = interner.stack_of([frame])

    threads = [Thread(target=work, args=(number,)) for number in range(4)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    frozen = interner.frozen_stacks()
    assert len(stacks) == len(frozen.offsets) - 1 == 2000
    named = {name: interner.text(frozen.frames.name[frozen.indices[number]]) for name, number in stacks.items()}
    assert all(name == found for name, found in named.items())
