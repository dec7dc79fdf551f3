"""The pytest plugin, in a second pytest; and a test measured on a fake GPU that records as torch does."""

import re
from importlib.metadata import entry_points

import pytest

from memviz.testing import gpu_memory
from memviz.testing.gpu_memory import GpuMemory, limit_of, over_limit
from tests import forked
from tests.facts import missing
from tests.house.repository import ROOT, text_of
from tests.runner.fake_gpu import FakeGpu
from tests.second_process import OF_RUNS

pytest_plugins = ["pytester"]

PLUGIN = "memviz.pytest_plugin"
MARKED = """
import pytest
import torch


@pytest.fixture
def weights():
    return torch.zeros(1 << 20, device="cuda")


@pytest.mark.limit_gpu_memory("12 MiB", card="L4")
def test_within(weights):
    assert torch.cuda.get_device_name() == "NVIDIA L4"
    more = torch.zeros(2 << 20, device="cuda")


@pytest.mark.limit_gpu_memory(12 * 2**20 - 1, card="L4")
def test_a_byte_too_much(weights):
    kept = [torch.zeros(1 << 18, device="cuda") for _ in range(4)]
    kept.append(torch.zeros(1 << 18, device="cuda"))
    kept.append(torch.zeros(1 << 18, device="cuda"))
    kept.append(torch.zeros(1 << 18, device="cuda"))
    kept.append(torch.zeros(1 << 17, device="cuda"))
    kept.append(torch.zeros(1 << 17, device="cuda"))


@pytest.mark.limit_gpu_memory("80 GiB", card="L4")
def test_more_than_the_card_has(weights):
    torch.zeros(30 << 30, dtype=torch.uint8, device="cuda")


@pytest.mark.limit_gpu_memory("1 GiB")
def test_of_the_processor():
    torch.zeros(1000)


@pytest.mark.limit_gpu_memory("many")
def test_of_no_size():
    raise AssertionError("it must not run")


def test_fixture(gpu_memory):
    assert gpu_memory.is_predicted and gpu_memory.peak_bytes == 0
    for _ in range(3):
        torch.zeros(1000, device="cuda")
    assert gpu_memory.peak_bytes == 4000


def test_that_is_not_marked():
    assert not torch.overrides._get_current_function_mode_stack()
"""

WITHOUT_TORCH = """
import sys

sys.modules["torch"] = None


def test_it(gpu_memory):
    raise AssertionError("it must not run")
"""

PLAIN = """
import sys


def test_nothing_is_imported():
    loaded = {name.partition(".")[0] for name in sys.modules}
    assert not loaded & {"torch", "numpy", "pandas", "plotly", "gradio"}
    assert {name for name in sys.modules if name.startswith("memviz.")} == {"memviz.pytest_plugin", "memviz.errors"}
"""


@pytest.fixture
def second(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return pytester


def run(second: pytest.Pytester, *options: str, with_torch: bool = False) -> pytest.RunResult:
    """`with_torch` from a process that has imported it."""
    # Where memviz is installed pytest has the plugin already, and takes none twice.
    is_there = any(point.value == PLUGIN for point in entry_points(group="pytest11"))
    named = () if is_there else ("-p", PLUGIN)
    options = (*named, "--memviz-predict", "-W", "error::DeprecationWarning", *options)
    if not with_torch:
        return second.runpytest_subprocess(*options)
    # Plugins of others may have been imported with torch: what they assert is of no interest.
    options += ("-W", "ignore::pytest.PytestAssertRewriteWarning")
    done = forked.run(["-m", "pytest", *options], cwd=second.path, of=OF_RUNS)
    return pytest.RunResult(done.returncode, done.stdout.splitlines(), done.stderr.splitlines(), 0)


@pytest.mark.slow
def test_a_session_that_does_not_use_it_imports_nothing(second):
    second.makepyfile(PLAIN)
    run(second, "-n", "0").assert_outcomes(passed=1)


@pytest.mark.slow
def test_without_torch_it_says_what_brings_it(second):
    second.makepyfile(WITHOUT_TORCH)
    done = run(second, "-n", "0")
    done.assert_outcomes(errors=1)
    assert (
        "This needs torch, which is not installed here. `pip install -r requirements.txt` brings it"
        in done.stdout.str()
    )


@pytest.mark.slow
def test_a_limit_fails_the_test_that_passes_it(second):
    second.makepyfile(MARKED)
    done = run(second, "-n", "0", "--strict-markers", with_torch=True)
    done.assert_outcomes(passed=4, failed=2, errors=1, warnings=1)
    text = done.stdout.str()
    assert missing(text, "limit_gpu_memory", "24GiB", "512MiB") == []
    told = text[text.index("The test held 12.0 MiB of GPU memory at its peak, 1 B more than its limit of 12.0 MiB") :]
    assert told.splitlines()[0].endswith("(predicted for NVIDIA L4).")
    rows = [line.split() for line in told.splitlines()[1:7]]
    assert [row[0] for row in rows] == ["4.00", "4.00", "1.00", "1.00", "1.00", "1.00"]
    assert [row[1] for row in rows] == ["MiB"] * 6
    assert "all others" in told.splitlines()[6]
    assert re.search(r"OutOfMemoryError: CUDA out of memory. Tried to allocate 30.00 GiB", text)
    assert "Captured GPU memory at the peak call" in text
    assert "Nothing was allocated on a GPU in this test." in text


def test_the_readmes_example_runs(second):
    (example,) = re.findall(r"```python\n(.*?)```", text_of("memviz/testing/README.md"), re.S)
    second.makepyfile(example)
    run(second, "-n", "0", with_torch=True).assert_outcomes(passed=2)


@pytest.mark.slow
def test_the_plugin_explains_itself(second):
    said = run(second, "-n", "0", "--markers").stdout.str()
    assert "@pytest.mark.limit_gpu_memory(limit, card=None, settings=None, assume=None)" in said


@pytest.mark.slow
def test_pages_are_kept_by_workers_and_listed_once(second):
    second.makepyfile(MARKED)
    done = run(second, "-n", "2", "--memviz-report", "pages")
    done.assert_outcomes(passed=4, failed=2, errors=1, warnings=1)
    pages = second.path / "pages"
    assert missing(done.stdout.str(), "GPU", "pages/index.html", "4 pages") == []
    index = (pages / "index.html").read_text()
    linked = re.findall(r'<a href="([^"]+)">([^<]+)</a></td><td>(\w+)</td><td>([^<]+)</td>', index)
    assert [(name.partition("::")[2], outcome, size) for _, name, outcome, size in linked] == [
        ("test_a_byte_too_much", "failed", "12.0 MiB"),
        ("test_within", "passed", "12.0 MiB"),
        ("test_more_than_the_card_has", "failed", "4.00 MiB"),
        ("test_fixture", "passed", "3.91 KiB"),
    ]
    assert sorted(page for page, *_ in linked) == sorted(
        path.name for path in pages.iterdir() if path.name != "index.html"
    )
    for page, name, *_ in linked:
        text = (pages / page).read_text()
        assert name.partition("::")[2] in text and "predicted for NVIDIA" in text


MiB = 1 << 20


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    made = FakeGpu()
    monkeypatch.setattr(gpu_memory, "find_accelerator", lambda: made.accelerator)
    monkeypatch.setattr("memviz.runner.record.recording.find_accelerator", lambda: made.accelerator)
    return made


def test_what_was_there_before_is_not_the_tests(gpu: FakeGpu):
    earlier = gpu.malloc(30 * MiB)
    memory = GpuMemory("test_x", limit_of("5 MiB"), predicts=False)
    memory.start()
    assert not memory.is_predicted and memory.peak_bytes == 0
    for _ in range(2):
        gpu.free(gpu.malloc(6 * MiB))
    assert memory.peak_bytes == 6 * MiB
    memory.finish()
    gpu.malloc(50 * MiB)
    memory.finish()
    assert memory.trace is not None and memory.device is not None and memory.used is not None
    assert (memory.used.peak_bytes, memory.used.before_bytes, memory.peak_bytes) == (6 * MiB, 30 * MiB, 6 * MiB)
    assert (memory.trace.about.origin, memory.trace.about.source) == ("measured", "test_x")
    words = over_limit(memory.trace, memory.device, 5 * MiB)
    assert words.startswith(
        "The test held 6.00 MiB of GPU memory at its peak, 1.00 MiB more than its limit of 5.00 MiB"
    )
    assert over_limit(memory.trace, memory.device, 6 * MiB) == ""
    gpu.free(earlier)


def test_one_may_predict_all_the_same(gpu: FakeGpu):
    assert GpuMemory("test_x", limit_of(), predicts=True).is_predicted
