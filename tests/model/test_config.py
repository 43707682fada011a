from typing import Any

import pytest

from hyperslab.errors import UserError
from hyperslab.model.config import ModelSettings, ObjectiveSettings
from hyperslab.settings import parse


@pytest.mark.parametrize(
    ("width", "heads", "advice"),
    # The largest number of heads up to that asked for that divides the width: 130 = 2 x 5 x 13; 17 is prime.
    [(128, 12, 8), (130, 12, 10), (96, 5, 4), (17, 16, 1)],
)
def test_heads_that_do_not_divide_the_width_are_refused_with_a_divisor_to_try(width, heads, advice):
    with pytest.raises(UserError) as error:
        parse(ModelSettings, {"width": width, "heads": heads}, "campaign.yaml")

    assert str(error.value) == (
        f"campaign.yaml: model.heads: must divide model.width ({width}), got {heads}; try {advice}"
    )


def test_the_smallest_sizes_are_accepted():
    chosen = ModelSettings(width=8, depth=1, heads=8, patch=1, history=1)

    assert (chosen.width, chosen.heads, chosen.patch) == (8, 8, 1)


@pytest.mark.parametrize(
    "content",
    [{"width": 4, "heads": 2}, {"depth": 0}, {"heads": 0}, {"patch": 0}, {"history": 0}],
)
def test_sizes_below_the_smallest_are_refused(content: dict[str, Any]):
    key, value = next(iter(content.items()))

    with pytest.raises(UserError, match=rf"campaign.yaml: {key}: found {value}; input should be greater than"):
        parse(ModelSettings, content, "campaign.yaml")


def test_an_unknown_key_is_refused_with_the_nearest_known_one():
    with pytest.raises(UserError, match="widht: unknown key, found 64; did you mean `width`"):
        parse(ModelSettings, {"widht": 64}, "campaign.yaml")


@pytest.mark.parametrize("content", [{"kind": "nowcast"}, {"lead": 0}])
def test_an_unknown_objective_and_a_lead_of_nothing_are_refused(content: dict[str, Any]):
    key, value = next(iter(content.items()))

    with pytest.raises(UserError, match=rf"campaign.yaml: {key}: found {value!r}; input should be"):
        parse(ObjectiveSettings, content, "campaign.yaml")
