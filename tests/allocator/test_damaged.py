"""Files that contradict themselves are replayed as far as they go, and never break the model."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from memviz.allocator.settings import parse_settings
from memviz.errors import TraceError
from tests.allocator.driver import MiB
from tests.replays import replay
from tests.traces import read

ACTIONS = [
    *("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap"),
    *("oom", "snapshot", "annotate", "unheard_of"),
]
addresses = st.integers(0, 8).map(lambda place: 0x7F0000000000 + place * 20 * MiB) | st.sampled_from([0, 512, 1 << 63])
sizes = st.sampled_from([0, 1, 512, MiB, 2 * MiB, 5 * MiB, 20 * MiB, 40 * MiB, 1 << 45])
pools = st.sampled_from([(0, 0), (0, 0), (0, 1)])
events = st.fixed_dictionaries(
    {"action": st.sampled_from(ACTIONS), "addr": addresses, "size": sizes, "stream": st.just(0), "pool_id": pools}
)
blocks = st.fixed_dictionaries(
    {
        "address": addresses,
        "size": st.sampled_from([512, MiB, 5 * MiB]),
        "requested_size": st.sampled_from([0, 512]),
        "state": st.sampled_from(["active_allocated", "active_pending_free", "inactive"]),
    }
)
segments = st.fixed_dictionaries(
    {
        "address": addresses,
        "total_size": st.sampled_from([4096, 2 * MiB, 20 * MiB, 40 * MiB]),
        "segment_type": st.sampled_from(["small", "large"]),
        "segment_pool_id": pools,
        "is_expandable": st.booleans(),
        "blocks": st.lists(blocks, max_size=3),
    }
)


@pytest.mark.parametrize(
    ("text", "memory"), [(None, None), ("expandable_segments:True", None), ("max_split_size_mb:20", 50 * MiB)]
)
@given(events=st.lists(events, max_size=20), segments=st.lists(segments, max_size=3))
def test_whatever_a_file_says_a_replay_comes_to_an_end(text, memory, events, segments):
    try:
        trace = read({"segments": segments, "device_traces": [events]})
    except TraceError:
        assume(False)
    result = replay(trace, settings=None if text is None else parse_settings(text), memory=memory)
    assert result.exact or result.agreement is None or result.agreement.first_mismatch is not None
    assert result.peak_reserved_bytes >= result.reserved_end_bytes >= 0
