"""The campaign's record as an MLflow run; relaying twice changes nothing."""

import contextlib
import fcntl
import logging
import os
import tempfile
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hyperslab.data.files import read_json
from hyperslab.parallel import catalog
from hyperslab.workflows.campaign import MAIN, Campaign, CampaignDir
from hyperslab.workflows.journal import Journal, read_metrics, spools

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

logger = logging.getLogger(__name__)

DATABASE = "mlflow.db"
CAMPAIGN_TAG = "hyperslab.campaign"
SEGMENT_TAG = "hyperslab.segment"
PERIOD_SECONDS = 3.0


def database(directory: Path) -> str:
    """Address of the MLflow database in a directory."""
    return f"sqlite:///{directory / DATABASE}"


def relay(directory: CampaignDir, campaign: Campaign) -> None:
    """Bring the MLflow run of a campaign up to its journal and spools; make it where it is not there yet."""
    with _client(directory) as client:
        run = _find_run(client, directory, campaign)
        _relay_metrics(client, run, directory)
        _relay_segments(client, run, directory)
        _relay_outcome(client, run, directory)


def relay_if_possible(directory: CampaignDir, campaign: Campaign) -> None:
    """Relay once training has begun; trouble with MLflow is said, and stops no campaign."""
    if not spools(directory.path / "metrics"):
        return
    try:
        relay(directory, campaign)
    except Exception as error:  # MLflow raises what it likes, and training matters more
        reason = (str(error) or repr(error)).splitlines()[0]
        logger.warning("MLflow could not be written (%s); `hyperslab resume` tries again", reason)


@contextlib.contextmanager
def _client(directory: CampaignDir) -> Iterator["MlflowClient"]:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("DO_NOT_TRACK", "true")
    # A second of import that only those who track should pay.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow import MlflowClient

    for name in ("alembic", "mlflow"):
        logging.getLogger(name).setLevel(logging.WARNING)
    directory.tracking.mkdir(exist_ok=True)
    # Two processes that make the same new database break each other's migrations.
    with (directory.tracking / "relay.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory.tracking / DATABASE).exists():
            _create_database(directory.tracking)
        yield MlflowClient(tracking_uri=database(directory.tracking))


def _create_database(folder: Path) -> None:
    """Make the database aside: one that a crash left half-made can be neither used nor mended."""
    from mlflow import MlflowClient

    with tempfile.TemporaryDirectory(dir=folder, prefix=".new-") as aside:
        MlflowClient(tracking_uri=database(Path(aside))).search_experiments(max_results=1)
        (Path(aside) / DATABASE).rename(folder / DATABASE)


def _find_run(client: "MlflowClient", directory: CampaignDir, campaign: Campaign) -> "Run":
    experiment = client.get_experiment_by_name(campaign.track.experiment)
    if experiment is None:
        artifacts = (directory.tracking / "artifacts").as_uri()
        experiment_id = client.create_experiment(campaign.track.experiment, artifact_location=artifacts)
    else:
        experiment_id = experiment.experiment_id
    key = _campaign_key(directory)
    found = client.search_runs([experiment_id], filter_string=f"tags.`{CAMPAIGN_TAG}` = '{key}'")
    if found:
        return found[0]
    created = Journal(directory.journal).last("created") or {}
    run = client.create_run(
        experiment_id,
        start_time=int(created.get("time", 0) * 1000) or None,
        run_name=campaign.name,
        tags={
            CAMPAIGN_TAG: key,
            "hyperslab.directory": str(directory.path),
            "hyperslab.version": str(created.get("version", "")),
            "mlflow.source.git.commit": str(created.get("commit", "")),
        },
    )
    from mlflow.entities import Param

    flat = dict(_flatten(campaign.model_dump(mode="json")))
    flat |= {f"site.{key}": value for key, value in _flatten(directory.read_site().model_dump(mode="json"))}
    client.log_batch(run.info.run_id, params=[Param(key, str(value)[:6000]) for key, value in flat.items()])
    return run


def _campaign_key(directory: CampaignDir) -> str:
    created = Journal(directory.journal).last("created") or {}
    return str(created.get("key", directory.path.name))


def _flatten(content: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        elif value is not None and value != "":
            yield f"{prefix}{key}", value


def _relay_metrics(client: "MlflowClient", run: "Run", directory: CampaignDir) -> None:
    """Send what lies beyond the last step that is there; steps done again after a crash have equal numbers."""
    from mlflow.entities import Metric

    last: dict[str, int] = {}
    batch = []
    for entry in read_metrics(directory.path / "metrics"):
        for name, value in entry["values"].items():
            if name not in last:
                sent = client.get_metric_history(run.info.run_id, name)
                last[name] = max((metric.step for metric in sent), default=-1)
            if entry["step"] > last[name]:
                batch.append(Metric(name, value, int(entry["time"] * 1000), entry["step"]))
    for first in range(0, len(batch), 1000):
        client.log_batch(run.info.run_id, metrics=batch[first : first + 1000])


def _relay_segments(client: "MlflowClient", run: "Run", directory: CampaignDir) -> None:
    """A child run for each segment of training that has begun."""
    for spool in spools(directory.path / "metrics"):
        events = list(spool.read())
        if not events:
            continue
        number = spool.path.stem
        query = f"tags.`mlflow.parentRunId` = '{run.info.run_id}' and tags.`{SEGMENT_TAG}` = '{number}'"
        found = client.search_runs([run.info.experiment_id], filter_string=query)
        child = found[0] if found else client.create_run(
            run.info.experiment_id,
            start_time=int(events[0]["time"] * 1000),
            run_name=f"{run.info.run_name} segment {int(number)}",
            tags={"mlflow.parentRunId": run.info.run_id, SEGMENT_TAG: number},
        )  # fmt: skip
        steps = [event["step"] for event in events if "step" in event]
        for key, value in (("first_step", min(steps, default=0)), ("last_step", max(steps, default=0))):
            client.set_tag(child.info.run_id, f"hyperslab.{key}", str(value))
        ended = next((event for event in events if event["event"] == "ended"), None)
        gone = ended or _job_ended(directory, int(number))
        if gone and child.info.status == "RUNNING":
            status = "FINISHED" if ended else "FAILED"
            client.set_terminated(child.info.run_id, status, int(gone["time"] * 1000))


def _job_ended(directory: CampaignDir, segment: int) -> dict[str, Any] | None:
    for event in Journal(directory.journal).read():
        if event["event"] == "job_ended" and (event["step"], event["number"]) == ("pretrain", segment):
            return event
    return None


def _relay_outcome(client: "MlflowClient", run: "Run", directory: CampaignDir) -> None:
    """Dataset, checkpoints, skill and plots; the run ends once the report is there."""
    from mlflow.entities import Dataset, DatasetInput, Metric

    manifest_path = directory.store / ".hyperslab" / "manifest.json"
    if manifest_path.exists() and not run.inputs.dataset_inputs:
        digest = read_json(manifest_path)["digest"]
        source = f'{{"uri": "{directory.store}"}}'
        dataset = Dataset(name=run.info.run_name, digest=digest[:36], source_type="local", source=source)
        client.log_inputs(run.info.run_id, datasets=[DatasetInput(dataset)])
        client.set_tag(run.info.run_id, "hyperslab.store_digest", digest)
    checkpoints = [
        {"path": str(path), **{key: manifest[key] for key in ("step", "digest", "store_digest", "order_digest")}}
        for path in catalog.finished(directory.checkpoints)
        if (manifest := catalog.read_manifest(path))
    ]
    if checkpoints and run.data.tags.get("hyperslab.checkpoint") != checkpoints[-1]["path"]:
        client.log_dict(run.info.run_id, {"checkpoints": checkpoints}, "checkpoints.json")
        client.set_tag(run.info.run_id, "hyperslab.checkpoint", checkpoints[-1]["path"])
        client.set_tag(run.info.run_id, "hyperslab.order_digest", checkpoints[-1]["order_digest"])
    reported = Journal(directory.journal).last("reported")
    if reported is None:
        _relay_status(client, run, directory)
        return
    if run.info.status == "FINISHED":
        return
    skill = read_json(directory.evaluation / "skill.json")
    when = int(reported["time"] * 1000)
    metrics = [
        Metric(f"skill/{_prefix(table)}{row['kind']}/{score}/{row['channel']}", row[score], when, row["lead"])
        for table in skill["tables"]
        for row in table["rows"]
        for score in ("rmse", "acc")
        if row[score] is not None
    ]
    client.log_batch(run.info.run_id, metrics=metrics)
    client.log_artifacts(run.info.run_id, str(directory.report), "report")
    client.log_artifact(run.info.run_id, str(directory.campaign_file))
    client.set_terminated(run.info.run_id, "FINISHED", when)


def _prefix(table: dict[str, Any]) -> str:
    """What goes before the names of an archive's scores: nothing for the campaign's own."""
    return "" if table["archive"] == MAIN else f"{table['archive']}/"


def _relay_status(client: "MlflowClient", run: "Run", directory: CampaignDir) -> None:
    """Whether an unfinished campaign runs, was stopped, or failed."""
    journal = Journal(directory.journal)
    started, ended = journal.last("driver_started"), journal.last("driver_ended")
    status = "RUNNING"
    if ended and (not started or ended["time"] > started["time"]):
        status = "KILLED" if ended["how"] == "stopped" else "FAILED"
    if status != run.info.status:
        client.update_run(run.info.run_id, status)


class Relay(threading.Thread):
    """Relays a campaign in the background until it is closed; trouble with MLflow never stops a campaign."""

    def __init__(self, directory: CampaignDir, campaign: Campaign) -> None:
        super().__init__(name="tracking", daemon=True)
        self._directory = directory
        self._campaign = campaign
        self._closed = threading.Event()

    def run(self) -> None:
        """Relay whenever there is something new, once training has begun."""
        size = 0
        while not self._closed.wait(PERIOD_SECONDS):
            grown = sum(spool.path.stat().st_size for spool in spools(self._directory.path / "metrics"))
            if grown == size:
                continue
            relay_if_possible(self._directory, self._campaign)
            size = grown

    def close(self) -> None:
        """Stop, after the relay that is under way."""
        self._closed.set()
        if self.is_alive():
            self.join()
