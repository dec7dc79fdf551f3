"""`%%predict` over a cell of a notebook, in a kernel of its own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.facts import missing
from tests.results.test_open_trace import PLOTLY, outputs_of

pytestmark = pytest.mark.slow

CELLS = {
    "load": "%load_ext memviz",
    "model": """import torch
model = torch.nn.Linear(1024, 1024, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
data = torch.ones(8, 1024)
def step():
    model(data.cuda()).sum().backward()
    optimizer.step()
nowhere = torch.empty(3, device="meta")""",
    "train": """%%predict --card L4
model.cuda()
step()
made = data.cuda()
print("shape", made.shape, next(model.parameters()).device)
made.device""",
    "after": "print('made' in globals(), next(model.parameters()).device, model.weight.grad, len(optimizer.state))\n"
    "print(_predicted.estimate.peak_requested)",
    "stopped": """%%predict --card L4
a = torch.randn(4, 4, device="cuda")
torch.zeros((a.argmax() * 2).item())""",
    "stated": """%%predict --card L4 --assume cell:2=5
a = torch.randn(4, 4, device="cuda")
torch.zeros((a.argmax() * 2).item()).shape""",
    "full": """%%predict --card L4 --continue
held = torch.empty(40, 1 << 30, dtype=torch.uint8, device="cuda")""",
    "folder": "import memviz, tempfile\nfolder = tempfile.TemporaryDirectory()",
    "written": "%%predict --card L4 -o {folder.name}/run.pickle\nx = torch.ones(1 << 20, device='cuda')",
    "read": "print(memviz.open(f'{folder.name}/run.pickle').peak().headline)",
    "again": "%%predict --card L4 -o {folder.name}/run.pickle\nx = torch.ones(9, device='cuda')",
    "error": "%%predict\nx = torch.ones(9, device='cuda')\n1 / 0",
    "option": "%%predict --crad L4\n1",
    "elsewhere": "%%predict\nnowhere.cuda()",
    "later": "print(model(data).shape, torch.cuda.is_available())",
}


@pytest.fixture(scope="module")
def outputs() -> dict[str, list[Any]]:
    return outputs_of(CELLS)


def _error(outputs: list[Any]) -> Any:
    (error,) = [part for part in outputs if part.output_type == "error"]
    return error


def _texts(outputs: list[Any]) -> str:
    return "".join(
        part.text if part.output_type == "stream" else part.get("data", {}).get("text/plain", "") for part in outputs
    )


def test_a_cell_is_predicted_with_the_names_of_the_notebook(outputs: dict[str, list[Any]]) -> None:
    shown = outputs["train"]
    assert "shape torch.Size([8, 1024]) cuda:0" in _texts(shown) and "device(type='cuda', index=0)" in _texts(shown)
    (result,) = [part for part in shown if "text/html" in part.get("data", {}) and PLOTLY not in part["data"]]
    assert "predicted for NVIDIA L4" in result["data"]["text/plain"] and "fits in" in result["data"]["text/html"]
    assert any(PLOTLY in part.get("data", {}) for part in shown)


def test_the_notebook_stays_as_it_was(outputs: dict[str, list[Any]]) -> None:
    before, peak = _texts(outputs["after"]).splitlines()
    assert before == "False cpu None 0"
    # The weights, their gradient and momentum.
    assert int(peak) > 3 * 4 * 1024 * 1024
    assert _texts(outputs["later"]).strip() == "torch.Size([8, 1024]) False"


def test_what_stops_a_cell_is_a_sentence_that_a_later_cell_follows(outputs: dict[str, list[Any]]) -> None:
    assert _texts(outputs["stopped"]).count("--assume cell:2=VALUE") == 1
    assert "incomplete" in _texts(outputs["stopped"])
    assert "torch.Size([5])" in _texts(outputs["stated"])


def test_a_cell_goes_on_beyond_the_card(outputs: dict[str, list[Any]]) -> None:
    assert "it needs 40.00 GiB" in _texts(outputs["full"])


def test_a_cell_leaves_its_snapshot_and_replaces_none(outputs: dict[str, list[Any]]) -> None:
    assert "snapshot written to" in _texts(outputs["written"])
    assert "4.00 MiB" in _texts(outputs["read"])
    assert "run.pickle already exists" in _texts(outputs["again"])


def test_errors_are_those_of_the_cell_or_a_sentence(outputs: dict[str, list[Any]]) -> None:
    assert _error(outputs["error"]).ename == "ZeroDivisionError"
    assert "--crad" in _texts(outputs["option"]) and "--card" in _texts(outputs["option"])
    assert missing(_texts(outputs["elsewhere"]), "nowhere", "tensor") == []
