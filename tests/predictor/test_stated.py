"""Notes of assumptions: equal ones are merged, with their lines and count."""

from memviz.predictor.assumptions import Assumption, Assumptions, sentences_of
from tests.facts import missing

DECIDES = "it decides as if it were {number}"


def test_one_line_that_asks_again_and_again_is_one_note_with_a_count() -> None:
    assumptions = Assumptions()
    for number in (5, 3, 8):
        assumptions.state(DECIDES, number)
    (stated,) = assumptions.stated
    assert stated.as_json() == {"where": stated.where, "what": "it decides as if it were 3 to 8", "times": 3}
    assert assumptions.sentences == (f"{stated.where} (3 times): it decides as if it were 3 to 8.",)


def test_lines_that_ask_alike_are_one_sentence() -> None:
    lines = [Assumption(f"train.py:{line}", "it is true") for line in (3, 5)]
    assert sentences_of(lines) == ["train.py:3 and train.py:5: it is true."]
    many = [Assumption(f"train.py:{line}", DECIDES, line, line, times=2) for line in range(1, 10)]
    first, last = sentences_of([*many, Assumption("", "Text goes on")])
    assert missing(first, "train.py:1, train.py:2, train.py:3 and 6 more", "(18 times)", "1 to 9") == []
    assert last == "Text goes on."


def test_braces_of_an_answer_stay_what_they_are() -> None:
    assert Assumption("train.py:1", "{'a': {}} is used, as stated").what == "{'a': {}} is used, as stated"
