"""Archives of every kind as the model sees them, and campaigns over several of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hyperslab.data.store import open_store
from hyperslab.errors import UserError
from hyperslab.model.config import ModelSettings
from hyperslab.model.flops import count_parameters
from hyperslab.model.transformer import make_model
from hyperslab.parallel.tasks import FieldTask, HitTask
from hyperslab.site_configs.loader import load_site
from hyperslab.workflows.campaign import CampaignDir, load_campaign
from hyperslab.workflows.journal import read_metrics
from hyperslab.workflows.steps.plan import make_plan
from hyperslab.workflows.streams import archives_of, find_present, make_tasks, open_joint, open_stores
from tests.workflows import harness

SMALL: dict[str, Any] = {
    "model": {"width": 16, "depth": 2, "heads": 2},
    "train": {"steps": 6, "batch": 2, "validate_every": 3, "validation_windows": 4, "warmup_steps": 2},
    "checkpoint": {"every": 3},
    "track": {"every": 2},
}
BRAINS = {"source": "fmri", "validation": 0.34, "test": 0.34}
HITS = {"source": "lartpc", "validation": 0.2, "test": 0.2}


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw files of three sciences, simulated, and campaigns that have staged two of them."""
    folder = tmp_path_factory.mktemp("archives")
    harness.run("simulate", "fmri", folder / "raw-brains", "--size", "300kB", "--format", "parcels", "--runs", "3")
    harness.run("simulate", "lartpc", folder / "raw-hits", "--size", "3MB")
    harness.write_raw(folder / "winds.nc", frames=60)
    for name, data in (("brains", BRAINS), ("hits", HITS)):
        patterns = {"brains": "raw-brains/**/*_timeseries.tsv", "hits": "raw-hits/**/*.*"}
        content = SMALL | {"objective": {"kind": "masked"}, "data": data | {"files": [patterns[name]]}}
        content["model"] = SMALL["model"] | (
            {"history": 4, "patch": 1} if name == "brains" else {"history": 1, "patch": None}
        )
        harness.write_campaign(folder / f"{name}.yaml", **content)
        harness.run("stage", folder / f"{name}.yaml", "--dir", folder / name)
    return folder


def tasks_of(folder: Path, name: str, *changes: str) -> Any:
    directory = CampaignDir(folder / name)
    campaign = load_campaign(directory.campaign_file, list(changes))
    return make_tasks(campaign, open_stores(campaign, directory))


def test_parcels_are_names_and_have_a_vector_each(archives: Path) -> None:
    (task,) = tasks_of(archives, "brains")
    assert isinstance(task, FieldTask)
    (axis,) = task.field.axes
    assert (axis.name, axis.nominal, axis.periodic) == ("parcel", True, False)
    # Four frames of every parcel that holds data.
    assert len(task.lattice) == 4 * len(axis.values)


def test_hits_reach_as_far_as_those_of_the_training_split(archives: Path) -> None:
    (task,) = tasks_of(archives, "hits")
    assert isinstance(task, HitTask)
    store = task.store
    [(start, stop)] = store.splits["train"]
    hits = store.read_points(start, stop)["position"]
    assert task.cloud.low == pytest.approx(hits.min(axis=0), rel=1e-5)
    assert task.cloud.shape == (32,) * hits.shape[1]
    assert task.cloud.cell == pytest.approx((hits.max(axis=0) - hits.min(axis=0)) / 32, rel=1e-4)


def test_cells_must_be_as_many_as_axes(archives: Path) -> None:
    with pytest.raises(UserError, match=r"model\.cell: found 1 sizes for hits along \d axes; give one for each"):
        tasks_of(archives, "hits", "model.cell=[2.0]")


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("hits", "objective.kind=forecast", "objective.kind: found forecast for an archive of hits"),
        ("hits", "model.patch=2", r"model\.patch: is for fields on a grid; hits have `cell`"),
        ("hits", "objective.channel_weights={charge: 2}", r"objective\.channel_weights: is for fields on a grid"),
        ("hits", "objective.mask={kind: tube}", r"objective\.mask\.kind: found tube for an archive of hits"),
        ("brains", "model.cell=[2.0]", r"model\.cell: is for archives of hits; fields on a grid have `patch`"),
    ],
)
def test_settings_of_the_other_kind_of_archive_are_refused(archives: Path, name: str, change: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        tasks_of(archives, name, change)


def test_grid_points_without_data_are_found_and_are_no_tokens(archives: Path, tmp_path: Path) -> None:
    (task,) = tasks_of(archives, "brains")
    store = task.store

    class Gappy(type(store)):  # type: ignore[misc]
        """The same frames, the third parcel always missing."""

        def read(self, start: int, stop: int, space: Any = ()) -> Any:
            frames = open_store(archives / "brains" / "store").read(start, stop, space)
            frames[..., 2] = np.nan
            return frames

    gappy = Gappy(**{name: getattr(store, name) for name in store.__dataclass_fields__})
    present = find_present(gappy)
    assert find_present(store) is None
    assert present is not None
    assert np.flatnonzero(~present).tolist() == [2]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"history": 1000}, r"joint\.brains: the train split has .* needs 1000 \(joint\.brains\.history"),
        ({"objective": {"kind": "masked", "channel_weights": {"x": 1}}}, r"joint\.brains\.objective\.channel_weights"),
        ({"cell": [2.0]}, r"joint\.brains\.cell: is for archives of hits"),
        ({"patch": [1, 2, 3]}, r"joint\.brains\.patch: found \[1, 2, 3\] for frames along parcel"),
        ({"weight": 1e5}, r"weights: found 1 of 100001; each store needs at least one step"),
    ],
)
def test_a_joint_archive_is_looked_at_before_anything_is_done(
    archives: Path, tmp_path: Path, settings: Any, words: str
) -> None:
    entry = {"store": str(archives / "brains"), "objective": {"kind": "masked"}} | settings
    data = {"files": [str(archives / "winds.nc")]}
    campaign = load_campaign(harness.write_campaign(tmp_path / "c.yaml", data=data, joint={"brains": entry}), [])
    with pytest.raises(UserError, match=words):
        make_plan(campaign, load_site("local"))


def test_windows_of_attention_must_fit_all_archives(archives: Path, tmp_path: Path) -> None:
    # Winds lie along time, latitude and longitude; parcels along time and one axis.
    content: dict[str, Any] = {
        "data": {"files": [str(archives / "winds.nc")]},
        "model": {"attention": {"kind": "window", "window": [1, 2, 2]}},
        "joint": {"brains": {"store": str(archives / "brains"), "objective": {"kind": "masked"}}},
    }
    campaign = load_campaign(harness.write_campaign(tmp_path / "c.yaml", **content), [])
    with pytest.raises(UserError, match=r"model\.attention\.window: found \[1, 2, 2\] for tokens along 2 axes"):
        make_plan(campaign, load_site("local"))


def test_a_dry_run_counts_parameters_of_all_archives(archives: Path, tmp_path: Path) -> None:
    entry = {"history": 1, "objective": {"kind": "masked"}}
    joint = {name: entry | {"store": str(archives / name)} for name in ("brains", "hits")}
    content: dict[str, Any] = {"data": {"files": [str(archives / "winds.nc")]}}
    alone, together = (
        make_plan(load_campaign(harness.write_campaign(tmp_path / "c.yaml", **more), []), load_site("local")).streams
        for more in (content, content | {"joint": joint})
    )
    assert list(alone) == ["main"]
    assert list(together) == ["main", "brains", "hits"]
    model = make_model(ModelSettings(), together)
    assert count_parameters(ModelSettings(), together) == sum(p.numel() for p in model.parameters())


@pytest.mark.slow
def test_a_joint_campaign_trains_on_three_sciences_and_tells_of_each(archives: Path, tmp_path: Path) -> None:
    joint = {
        "brains": {"store": str(archives / "brains"), "history": 4, "objective": {"kind": "masked"}},
        "hits": {"store": str(archives / "hits" / "store"), "history": 1, "objective": {"kind": "masked"}},
    }
    content = SMALL | {"data": {"files": [str(archives / "winds.nc")]}, "joint": joint, "evaluate": {"rollout": 1}}
    content["model"] = SMALL["model"] | {"attention": ["window", "dense"]}
    file = harness.write_campaign(tmp_path / "joint.yaml", **content)
    campaign = load_campaign(file, [])
    assert [archive.name for archive in archives_of(campaign)] == ["main", "brains", "hits"]

    done = harness.run("run", file, "--dir", tmp_path / "joint")

    directory = tmp_path / "joint"
    names = {name for entry in read_metrics(directory / "metrics") for name in entry["values"]}
    assert {f"validation/loss/{name}" for name in ("main", "brains", "hits")} <= names
    assert {"attention/layer_00/output_error", "attention/layer_00/covered_mass"} <= names
    kinds = [{row["kind"] for row in harness.skill_rows(directory, number)} for number in range(3)]
    assert kinds == [
        {"forecast", "persistence", "climatology"},
        {"reconstruction", "interpolation", "mean"},
        {"reconstruction", "mean"},
    ]
    assert "held-out frames of hits: RMSE of what was hidden" in " ".join(done.stdout.split())
    assert {path.name for path in (directory / "report").iterdir()} == {
        "loss.png", "skill.png", "forecast.png", "skill.csv",
        "skill-reconstruction-brains.png", "skill-reconstruction-hits.png",
    }  # fmt: skip


def test_a_joint_archive_that_is_not_there_is_refused(tmp_path: Path) -> None:
    harness.write_raw(tmp_path / "raw.nc", frames=60)
    file = harness.write_campaign(tmp_path / "campaign.yaml", joint={"other": {"store": "nowhere"}})
    campaign = load_campaign(file, [])
    with pytest.raises(UserError, match="nowhere: the store does not exist"):
        open_joint(campaign)


def test_the_campaigns_own_archive_has_its_name_for_itself(tmp_path: Path) -> None:
    file = harness.write_campaign(tmp_path / "campaign.yaml", joint={"main": {"store": "x"}})
    with pytest.raises(UserError, match=r"joint: .*`main` is the archive of `data`; choose another name"):
        load_campaign(file, [])


def test_tokens_are_the_same_on_every_rank(archives: Path) -> None:
    first, second = (tasks_of(archives, "hits")[0].cloud for _ in range(2))
    assert (first.low, first.cell, first.shape) == (second.low, second.cell, second.shape)
    assert torch.get_num_threads() == 1
