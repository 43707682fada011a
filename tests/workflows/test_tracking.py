"""What a person finds in MLflow after a campaign."""

import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from hyperslab.data.store import open_store
from hyperslab.parallel import catalog
from hyperslab.workflows import tracking
from hyperslab.workflows.campaign import CampaignDir
from hyperslab.workflows.journal import Journal, Spool, read_metrics
from tests.workflows import harness


def tracked(directory: Path) -> tuple[MlflowClient, Run, list[Run]]:
    """The run of a campaign, and those of its segments."""
    client = MlflowClient(tracking_uri=tracking.database(directory.parent / "mlflow"))
    experiment = client.get_experiment_by_name("hyperslab")
    runs = client.search_runs([experiment.experiment_id])
    parents = [run for run in runs if run.data.tags.get("hyperslab.directory") == str(directory)]
    assert len(parents) == 1
    children = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parents[0].info.run_id]
    return client, parents[0], children


def files(client: MlflowClient, run: Run, folder: str | None = None) -> set[str]:
    return {item.path for item in client.list_artifacts(run.info.run_id, folder)}


def test_a_campaign_is_one_run_with_all_that_a_person_looks_for(finished: tuple[Path, float]) -> None:
    directory, _ = finished
    client, run, children = tracked(directory)
    assert run.info.status == "FINISHED"
    assert run.data.params["train.steps"] == str(harness.TRAIN_STEPS)
    assert run.data.params["site.name"] == "local"
    assert run.data.tags["hyperslab.store_digest"] == open_store(directory / "store").digest
    assert run.inputs.dataset_inputs[0].dataset.digest == open_store(directory / "store").digest[:36]
    names = {"report/loss.png", "report/skill.png", "report/forecast.png", "report/skill.csv"}
    assert files(client, run, "report") == names
    assert {"checkpoints.json", "campaign.yaml", "report"} == files(client, run)
    assert [child.info.status for child in children] == ["FINISHED"]
    last = sorted((directory / "checkpoints").iterdir())[-1]
    assert run.data.tags["hyperslab.checkpoint"] == str(last)
    assert run.data.tags["hyperslab.order_digest"] == catalog.read_progress(last).order_digest


def test_every_number_of_the_spool_is_there_once_with_its_step(finished: tuple[Path, float]) -> None:
    directory, _ = finished
    client, run, _ = tracked(directory)
    for name in ("train/loss", "validation/loss", "speed/samples_per_second"):
        expected = {
            entry["step"]: entry["values"][name]
            for entry in read_metrics(directory / "metrics")
            if name in entry["values"]
        }
        history = client.get_metric_history(run.info.run_id, name)
        assert len(history) == len(expected)
        assert {metric.step: metric.value for metric in history} == expected
    for row in harness.skill_rows(directory):
        if row["rmse"] is not None:
            found = client.get_metric_history(run.info.run_id, f"skill/{row['kind']}/rmse/{row['channel']}")
            assert {metric.step: metric.value for metric in found}[row["lead"]] == row["rmse"]


def test_relaying_again_changes_nothing(finished: tuple[Path, float]) -> None:
    directory, _ = finished
    _, before, children = tracked(directory)
    found = CampaignDir(directory)
    tracking.relay(found, found.read())
    _, after, again = tracked(directory)
    assert after.to_dictionary() == before.to_dictionary()
    assert [child.info.run_id for child in again] == [child.info.run_id for child in children]


@pytest.fixture
def interrupted(finished: tuple[Path, float], tmp_path: Path) -> CampaignDir:
    """The record of a campaign whose first segment crashed at step 30, and whose second began again at step 20."""
    directory = CampaignDir(tmp_path / "campaigns" / "crashed")
    (directory.path / "metrics").mkdir(parents=True)
    shutil.copy(finished[0] / "campaign.yaml", directory.path)
    shutil.copy(finished[0] / "site.yaml", directory.path)
    Journal(directory.journal).append("created", key="crashed", version="0", commit="")
    for segment, steps in ((1, (10, 20, 30)), (2, (30, 40))):
        spool = Spool(Journal(directory.spool(segment)))
        spool.journal.append("started", ranks=2, layout={}, pid=1)
        for step in steps:
            spool.log(step, {"train/loss": 1 / step})
        if segment == 1:
            tracking.relay(directory, directory.read())
            Journal(directory.journal).append("job_ended", step="pretrain", number=1, exit_code=137)
    return directory


def test_a_campaign_that_crashed_is_stitched_into_one_run(interrupted: CampaignDir) -> None:
    tracking.relay(interrupted, interrupted.read())
    client, run, children = tracked(interrupted.path)
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert sorted(metric.step for metric in history) == [10, 20, 30, 40]
    states = {child.data.tags["hyperslab.segment"]: child.info.status for child in children}
    assert states == {"0001": "FAILED", "0002": "RUNNING"}
    assert run.info.status == "RUNNING"
