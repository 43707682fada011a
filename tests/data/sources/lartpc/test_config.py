import pytest

from hyperslab.data.sources.lartpc.config import LartpcSettings
from hyperslab.errors import UserError
from hyperslab.settings import parse


def test_all_choices_may_be_left_out() -> None:
    assert parse(LartpcSettings, {}, "campaign.yaml") == LartpcSettings(hits=None, tick_ns=None, wires=None)


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"tick_ns": 0}, "tick_ns: found 0"),
        ({"tick_ns": -500}, "tick_ns: found -500"),
        ({"hits": "merged"}, "hits: found 'merged'"),
        ({"wires": [9, 3]}, "the first and the last number, in this order"),
        ({"tick": 500}, "unknown key.*did you mean `tick_ns`"),
    ],
)
def test_a_choice_that_is_none_is_refused(choice: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse(LartpcSettings, choice, "campaign.yaml")
