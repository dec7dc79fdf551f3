"""All optimizations together: one order, refused pairs, and complete undo."""

import ast
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import permutations
from typing import get_type_hints

import pytest
from torch import nn

from memviz.runner import prices
from optimizations import GROUPS, OPTIMIZATIONS, apply_all, check_together
from optimizations.checkpointing import Checkpointing
from tests.house.printed_code import EFFECTS
from tests.house.repository import ROOT
from tests.runner.output_check.test_comparison import SPOILED

each_class = pytest.mark.parametrize("kind", OPTIMIZATIONS, ids=lambda kind: kind.name)


@dataclass(frozen=True)
class Noted:
    """Does nothing but note when, into a list of the test's."""

    name: str
    notes: list[str] = field(default_factory=list)
    refuses: bool = False
    not_with: Mapping[str, str] = field(default_factory=dict)

    def apply(self, model: nn.Module) -> Callable[[], None]:
        if self.refuses:
            raise ValueError(f"{self.name} refuses")
        self.notes.append(self.name)
        return lambda: self.notes.append(f"undo {self.name}")


def test_the_order_is_fixed_whatever_order_they_are_given_in():
    names = [kind.name for kind in OPTIMIZATIONS]
    order = ["allocator_settings", "lora", "weight_quantization", "weight_offload", "checkpointing", "flat_gradients"]
    assert sorted(order, key=names.index) == order
    for given in permutations(["users_own", "checkpointing", "attention_backend", "flat_gradients"]):
        notes: list[str] = []
        undo = apply_all(nn.Linear(1, 1), [Noted(name, notes) for name in given])
        undo()
        order = ["attention_backend", "checkpointing", "flat_gradients", "users_own"]
        assert notes == [*order, *(f"undo {name}" for name in reversed(order))]


def test_each_has_a_row_in_every_table():
    names = {kind.name for kind in OPTIMIZATIONS}
    tables = {
        "GROUPS of optimizations/__init__.py": {kind.name for kinds in GROUPS.values() for kind in kinds},
        "EFFECTS of tests/house/printed_code.py": set(EFFECTS),
        "SPOILED of tests/runner/output_check/test_comparison.py": set(SPOILED),
        "the stored prices: python -m memviz.runner.prices NAME": {
            price["name"] for price in prices._presets()["feed_forward"]["prices"]
        },
    }
    assert {table: names ^ rows for table, rows in tables.items() if rows != names} == {}
    assert sum(map(len, GROUPS.values())) == len(names) == len(OPTIMIZATIONS)


def test_a_refusal_half_way_undoes_what_was_applied():
    notes: list[str] = []
    chosen = [
        Noted("flat_gradients", notes, refuses=True),
        Noted("checkpointing", notes),
        Noted("attention_backend", notes),
    ]
    with pytest.raises(ValueError, match="flat_gradients refuses"):
        apply_all(nn.Linear(1, 1), chosen)
    assert notes == ["attention_backend", "checkpointing", "undo checkpointing", "undo attention_backend"]


@pytest.mark.parametrize("turned", [False, True])
def test_a_pair_that_does_not_go_together_is_named_with_the_reason_of_either(turned):
    pair = [Noted("one", not_with={"other": "they both move house."}), Noted("other")]
    pair = pair[::-1] if turned else pair
    words = f"{pair[0].name} cannot be combined with {pair[1].name}: they both move house."
    for refuse in (check_together, lambda pair: apply_all(nn.Linear(1, 1), pair)):
        with pytest.raises(ValueError, match=words):
            refuse([Noted("third"), *pair])
    assert [each.notes for each in pair] == [[], []]


def test_the_same_twice_is_refused():
    with pytest.raises(ValueError, match="checkpointing is given twice"):
        check_together([Checkpointing(every=2), Checkpointing()])


def test_pairs_that_are_ruled_out_name_optimizations_that_exist():
    names = {kind.name for kind in OPTIMIZATIONS}
    for kind in OPTIMIZATIONS:
        assert set(kind.not_with) <= names - {kind.name}
        assert all(reason.endswith(".") for reason in kind.not_with.values())


@each_class
def test_each_has_what_a_command_line_and_a_page_show(kind):
    assert is_dataclass(kind) and kind.__dataclass_params__.frozen
    assert kind.__module__ == f"optimizations.{kind.name}"
    assert kind.title and 1 <= kind.sentence.count(". ") + 1 <= 2 and kind.sentence.endswith(".")
    known = get_type_hints(kind)
    for each in fields(kind):
        assert each.metadata["help"]
        assert each.metadata.get("python_only") or known[each.name] in (int, float, bool, str, int | None, str | None)
        choices = each.metadata.get("choices", ())
        assert not choices or each.default in choices
    made = kind()
    assert made.claim in ("bitwise", "rounding", "training", "lossy") and isinstance(dict(made.environment), dict)


@each_class
def test_each_file_can_be_copied_away_alone(kind):
    """An optimization's file imports torch and the standard library only."""
    tree = ast.parse((ROOT / "optimizations" / f"{kind.name}.py").read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    names = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    assert {name.partition(".")[0] for name in names} - sys.stdlib_module_names == {"torch"}
