"""memviz works with numpy alone, and a feature that needs another library names the remedy."""

import subprocess
import sys

import pytest

from tests.house.repository import ROOT

ONLY_NUMPY = """
import sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        first = name.partition(".")[0]
        if first not in sys.stdlib_module_names and first not in ("memviz", "numpy"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Nothing())
import memviz
"""
ALL_OF_IT = """
trace = memviz.open("sample_traces/training.pickle.gz")
results = [trace, trace.summary(), trace.peak(), trace.live_at(event=5).by("module"), trace.by("category")]
results += [trace.segments_at(event=1000), trace.compare("sample_traces/training-checkpointed.pickle.gz")]
results += [trace.replay(settings="expandable_segments:True", memory="24GiB")]
for result in results:
    assert str(result) and result._repr_html_() and result.as_json() and result.columns()
print(len(results))
"""


REFUSED = """
import memviz.errors
try:
    {asked}
except memviz.errors.LibraryNeeded as error:
    print(error)
"""


def run(program: str) -> tuple[str, str]:
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip(), done.stderr


def test_all_of_it_works_with_numpy_alone():
    assert run(ONLY_NUMPY + ALL_OF_IT) == ("8", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "asked"),
    [
        ("pandas", "memviz.open('sample_traces/training.pickle.gz').peak().to_frame()"),
        ("plotly", "memviz.figures.timeline(memviz.open('sample_traces/training.pickle.gz'))"),
        ("torch", "memviz.predicting"),
    ],
)
def test_what_needs_a_library_that_is_not_there_names_the_remedy(library: str, asked: str) -> None:
    said, wrong = run(ONLY_NUMPY + REFUSED.format(asked=asked))
    assert wrong == ""
    remedy = "`pip install -r requirements.txt` brings it."
    assert said.startswith(f"This needs {library}, which is not installed here. {remedy}")


def test_memviz_itself_imports_nothing():
    program = (
        "import sys, memviz; print(*sorted(name for name in sys.modules if name.startswith(('memviz.', 'numpy'))))"
    )
    assert run(program) == ("", "")
