from typing import Any

import pytest

from hyperslab.errors import UserError
from hyperslab.parallel.config import CheckpointSettings, ParallelSettings, TrainSettings
from hyperslab.settings import Settings, parse


@pytest.mark.parametrize(
    ("model", "key", "value"),
    [
        (TrainSettings, "steps", 0),
        (TrainSettings, "batch", 0),
        (TrainSettings, "learning_rate", 0.0),
        (TrainSettings, "warmup_steps", -1),
        (TrainSettings, "weight_decay", -0.1),
        (TrainSettings, "clip_norm", 0.0),
        (TrainSettings, "seed", -1),
        (TrainSettings, "validate_every", 0),
        (TrainSettings, "validation_windows", 0),
        (TrainSettings, "max_nonfinite", 0),
        (ParallelSettings, "ranks", 0),
        (ParallelSettings, "replicate", 0),
        (ParallelSettings, "pipeline", 0),
        (ParallelSettings, "domain", 0),
        (ParallelSettings, "tensor", 0),
        (CheckpointSettings, "every", 0),
        (CheckpointSettings, "keep", 0),
    ],
)
def test_a_number_below_its_smallest_is_refused_by_name(model: type[Settings], key: str, value: float):
    with pytest.raises(UserError, match=rf"campaign.yaml: {key}: found {value}; input should be greater than"):
        parse(model, {key: value}, "campaign.yaml")


def test_no_warm_up_no_decay_and_seed_zero_are_accepted():
    content: dict[str, Any] = {"warmup_steps": 0, "weight_decay": 0.0, "seed": 0}

    assert parse(TrainSettings, content, "campaign.yaml").model_dump(include=set(content)) == content


@pytest.mark.parametrize(
    ("model", "wrong", "right"),
    [
        (TrainSettings, "learning_rat", "learning_rate"),
        (ParallelSettings, "replicas", "replicate"),
        (CheckpointSettings, "evry", "every"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(model: type[Settings], wrong: str, right: str):
    with pytest.raises(UserError, match=f"{wrong}: unknown key, found 1; did you mean `{right}`"):
        parse(model, {wrong: 1}, "campaign.yaml")
