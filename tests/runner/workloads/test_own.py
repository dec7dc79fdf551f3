"""A user's own file: only parsed before it runs, errors shown where they are, parameters of its function as knobs."""

from pathlib import Path

import pytest
import torch

from memviz.errors import UsageError
from memviz.runner.plan import make_workload
from tests.facts import missing

CPU, META = torch.device("cpu"), torch.device("meta")

PLAIN = """
import torch

def linear(width: int = 8, *, bias: bool = True, batch=2, small=False):
    model = torch.nn.Linear(4 if small else width, 3, bias=bias)
    return model, {"input": torch.randn(batch, 4 if small else width)}
"""


@pytest.fixture
def file(tmp_path: Path):
    def written(text: str) -> str:
        path = tmp_path / "mine.py"
        path.write_text(text)
        return str(path)

    return written


def test_a_model_and_inputs_by_name(file):
    workload = make_workload(file(PLAIN), {"width": "16", "bias": "no", "mode": "training"})
    model = workload.build()
    inputs = workload.inputs(CPU)
    assert (model.weight.shape, model.bias, inputs["input"].shape) == ((3, 16), None, (2, 16))
    output = model(**inputs)
    assert torch.equal(workload.loss(output), output.mean())
    assert workload.training
    assert missing(workload.describe(), "linear of mine.py", "48 parameters", "training step") == []


def test_on_meta_first_and_with_numbers_afterwards(file):
    workload = make_workload(file(PLAIN), {"seed": "7"})
    with META:
        model = workload.build()
    assert model.weight.device == META
    assert workload.inputs(META)["input"].device == META
    first, again = workload.inputs(CPU)["input"], workload.inputs(CPU)["input"]
    assert first.device == CPU
    assert torch.equal(first, again)


def test_positions_become_names_and_a_loss_may_follow(file):
    text = """
import torch

class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
    def forward(self, first, second):
        return {"sum": (first + second) * self.weight}

def both():
    return Two(), (torch.ones(3), torch.ones(3)), lambda output: output["sum"].sum()
"""
    workload = make_workload(f"{file(text)}:both", {"mode": "training", "dtype": "bf16"})
    model = workload.build()
    inputs = workload.inputs(CPU)
    assert {key: each.dtype for key, each in inputs.items()} == {"first": torch.bfloat16, "second": torch.bfloat16}
    assert workload.loss(model(**inputs)) == 6


def test_its_twin_is_asked_for_by_a_parameter(file):
    assert make_workload(file(PLAIN)).small().build().weight.shape == (3, 4)
    workload = make_workload(file(PLAIN.replace(", small=False", "").replace("4 if small else ", "")))
    with pytest.raises(UsageError, match="Give it a parameter small=False"):
        workload.small()


def test_naming_it_executes_nothing_and_what_lies_beside_it_can_be_imported(file, tmp_path):
    workload = make_workload(file("raise SystemExit('executed')\ndef build():\n    pass\n"))
    with pytest.raises(UsageError, match=r"mine.py, line 1: SystemExit: executed$"):
        workload.build()
    (tmp_path / "beside_mine.py").write_text("WIDTH = 5\n")
    body = "def build():\n    return torch.nn.Linear(WIDTH, 1), torch.ones(WIDTH)\n"
    text = f"import torch\nfrom beside_mine import WIDTH\n{body}"
    assert make_workload(file(text)).build().weight.shape == (1, 5)


@pytest.mark.parametrize(
    ("text", "asked", "settings", "message"),
    [
        (PLAIN, ":linaer", {}, "{file} has no function linaer at its top level. Did you mean linear? There is linear."),
        (PLAIN, "", {"widht": "3"}, "linear in {file} has no parameter widht. Did you mean width? There are width, b"),
        (PLAIN, "", {"mode": "eval"}, "own: mode cannot be eval. There are inference, training."),
        ("def a(): pass\ndef b(): pass\n", "", {}, "{file} has several functions. Name one of them: {file}:a, "),
        ("x = 1\n", "", {}, "{file} has no top-level function. Write a function that returns (model, inputs)"),
        ("def broken(:\n", "", {}, "{file}, line 1 is not Python: invalid syntax."),
    ],
)
def test_refused_before_it_runs(file, text, asked, settings, message):
    path = file(text)
    with pytest.raises(UsageError) as caught:
        make_workload(path + asked, settings)
    assert str(caught.value).startswith(message.replace("{file}", path))
    with pytest.raises(UsageError, match=r"gone.py cannot be read: No such file or directory\.$"):
        make_workload(path.replace("mine.py", "gone.py"))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("    return 1 / 0\n", "{file}, line 3: ZeroDivisionError: division by zero"),
        ("    return torch.nn.ReLU()\n", "{where} must return (model, inputs) or (model, inputs, loss), with a "),
        ("    return torch.nn.ReLU(), (1, 2)\n", "{where}: the inputs do not fit the model's forward: too many"),
        ("    return torch.nn.ReLU(), 1, 2\n", "{where}: the loss must be a function of the model's output, not int."),
    ],
)
def test_what_it_does_wrong_is_shown_where_it_is(file, body, message):
    path = file(f"import torch\ndef build(count: int = 1):\n{body}")
    workload = make_workload(path)
    with pytest.raises(UsageError) as caught:
        workload.build()
    assert str(caught.value).startswith(message.replace("{file}", path).replace("{where}", f"build in {path}"))


@pytest.mark.parametrize(
    ("parameter", "text", "value"),
    [
        ("x: int", "1_000", 1000),
        ("x: float = 1", "0.5", 0.5),
        ("x: bool = False", "on", True),
        ("x: int | None = None", "none", None),
        ("x: int | None = None", "3", 3),
        ("x=4", "5", 5),
        ("x=True", "no", False),
        ("x", "[1, 2]", [1, 2]),
        ("x", "plain", "plain"),
        ("x: str = ''", "5", "5"),
        ("**x", "5", {"x": 5}),
    ],
)
def test_texts_become_what_the_parameter_says(file, parameter, text, value):
    body = "    model = torch.nn.ReLU()\n    model.got = x\n    return model, {}\n"
    text_of_file = f"import torch\ndef build({parameter}):\n{body}"
    assert make_workload(file(text_of_file), {"x": text}).build().got == value


def test_a_text_that_does_not_fit_the_parameter_is_named_and_one_with_the_name_of_a_knob_is_told_too(file):
    workload = make_workload(file(PLAIN), {"width": "wide"})
    with pytest.raises(UsageError, match=r"^linear: width is a whole number, as in 16 or 1_000; not 'wide'\.$"):
        workload.build()
    text = "import torch\ndef build(seed=0):\n    return torch.nn.Linear(seed, 1), torch.ones(seed)\n"
    workload = make_workload(file(text), {"seed": "6"})
    assert (workload.seed, workload.build().weight.shape) == (6, (1, 6))


RETURNS = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(3, 3)
    def forward(self, x):
        {forward}

def build():
    return Model(), torch.ones(2, 3){loss}
"""


@pytest.mark.parametrize(
    ("forward", "loss", "message"),
    [
        ("self.line(x)", "", "The model returns nothing (None), with no mean to train on. Return (model"),
        ("return (self.line(each) for each in x)", "", "The model returns a generator, with no floating-point tensor"),
        ("return []", "", "The model returns a list, with no floating-point tensor in it"),
        ("return self.line(x).argmax()", "", "The model returns a Tensor, with no floating-point tensor in it"),
        ("return self.line(x)", ", lambda output: 3.0", "The loss is a float; a training step needs a tensor with one"),
        ("return self.line(x)", ", lambda output: output", "The loss is a tensor of shape (2, 3); a training step nee"),
        ("return self.line(x).detach()", "", "The loss does not depend on a trainable parameter"),
    ],
)
def test_what_no_step_can_be_trained_on_is_said_in_words(file, forward, loss, message):
    workload = make_workload(file(RETURNS.format(forward=forward, loss=loss)), {"mode": "training"})
    model = workload.build()
    output = model(**workload.inputs(CPU))
    with pytest.raises(UsageError) as caught:
        workload.loss(output)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "forward",
    [
        "return {'order': x.argmax(), 'deep': [None, (self.line(x), x)]}",
        "return x.argmax(), self.line(x)",
        "return {'found': x, 'loss': self.line(x).mean()}",
    ],
)
def test_the_first_tensor_that_can_have_a_mean_is_trained_on_wherever_it_stands(file, forward):
    workload = make_workload(file(RETURNS.format(forward=forward, loss="")), {"mode": "training"})
    model, inputs = workload.build(), workload.inputs(CPU)
    assert torch.equal(workload.loss(model(**inputs)), model.line(inputs["x"]).mean())
