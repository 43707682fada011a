from pathlib import Path

import pytest

from hyperslab.errors import UserError
from hyperslab.site_configs.loader import load_site
from hyperslab.workflows.campaign import load_campaign
from hyperslab.workflows.steps.plan import Plan, make_plan
from tests.workflows import harness


def plan_of(folder: Path, frames: int = 60, **sections: object) -> Plan:
    harness.write_raw(folder / "raw.nc", frames=frames)
    campaign = load_campaign(harness.write_campaign(folder / "campaign.yaml", **sections), [])
    return make_plan(campaign, load_site("local"))


def test_windows_are_counted_for_each_split(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    # 60 frames: the last 6 test, the 6 before validate. History 2 and lead 1 make windows of 3 frames; the test
    # split rolls out two steps, so that its windows have 4.
    assert plan.recipe.splits == {"train": ((0, 48),), "validation": ((48, 54),), "test": ((54, 60),)}
    assert plan.num_windows == {"train": 46, "validation": 4, "test": 3}
    assert (plan.layout.replicate, plan.layout.shard) == (1, 2)


def test_a_split_too_short_for_a_window_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    # A tenth of 20 frames validates: 2, where history 2 and lead 1 make windows of 3.
    with pytest.raises(UserError, match=r"the validation split has 2 frames, 2 without a gap; a window needs 3"):
        plan_of(tmp_path, frames=20)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["campaign.yaml", "raw.nc"]


def test_a_batch_that_the_ranks_cannot_share_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"train\.batch: must be a multiple of replicate 1 x shard 2 x pieces 1 = 2, got 3; try 4"
    ):
        plan_of(tmp_path, train={"batch": 3})


def test_weights_of_unknown_channels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^objective\.channel_weights: found 'nope'; the archive has "):
        plan_of(tmp_path, objective={"channel_weights": {"nope": 2.0}})


def test_attention_that_cannot_train_on_the_device_is_refused(tmp_path: Path) -> None:
    attention = {"kind": "block_sparse", "backend": "flex"}
    with pytest.raises(UserError, match=r"model\.attention\.backend: found flex, which does not train on the cpu"):
        plan_of(tmp_path, model={"attention": attention})
