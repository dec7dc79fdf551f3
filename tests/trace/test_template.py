"""Lists of references, as bytes of a pickle."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memviz.trace.unpickle.rows import places_in

# 104 and 106 are the operations themselves.
places = st.integers(0, 255) | st.sampled_from([104, 106, 0x6A68, 0x686A686A, 2**32 - 1]) | st.integers(0, 2**32 - 1)


def reference(place: int, *, is_long: bool) -> bytes:
    return b"j" + place.to_bytes(4, "little") if is_long or place > 255 else b"h" + bytes([place])


@given(st.lists(st.tuples(places, st.booleans())), st.sampled_from([(b"(", b"e"), (b"", b"e"), (b"", b"")]))
def test_every_place_is_found_in_its_order(wanted: list[tuple[int, bool]], around: tuple[bytes, bytes]) -> None:
    row = b"".join(reference(place, is_long=is_long) for place, is_long in wanted)
    assert places_in(around[0] + row + around[1]).tolist() == [place for place, _ in wanted]
