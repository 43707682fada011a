"""A campaign: what its file says, and the directory that is its record."""

import contextlib
import errno
import fcntl
import json
import os
import re
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import Field, field_validator, model_validator

from hyperslab.data.config import DataSettings
from hyperslab.data.sources.paths import absolute
from hyperslab.errors import UserError, disk_error
from hyperslab.model.config import ModelSettings, ObjectiveSettings, TokenSettings
from hyperslab.parallel.config import CheckpointSettings, ParallelSettings, TrainSettings
from hyperslab.parallel.layout import make_layout
from hyperslab.settings import Settings, matching, override, parse, read_yaml
from hyperslab.site_configs.schema import Site

MAIN = "main"
"""Name of the archive that a campaign stages itself."""
StreamName = Annotated[
    str,
    matching(
        r"[a-z][a-z0-9_]{0,30}", "must be up to 31 lower-case letters, digits and underscores, beginning with a letter"
    ),
]


class EvaluateSettings(Settings):
    """How the trained model is judged."""

    rollout: int = Field(default=3, ge=1)
    """Forecast steps in the skill table, each `objective.lead` frames long."""


class JointSettings(TokenSettings):
    """Another archive, staged before, that trains the same layers."""

    store: str = Field(min_length=1)
    """A finished store, or the directory of the campaign that staged it; relative to the campaign file."""
    weight: float = Field(default=1.0, gt=0)
    """Steps that draw from it, for each one that draws from `data`."""
    objective: ObjectiveSettings = ObjectiveSettings()
    """What the model learns from it."""


class TrackSettings(Settings):
    """What goes to MLflow."""

    every: int = Field(default=10, ge=1)
    """Training steps between two entries of the metrics."""
    experiment: str = Field(default="hyperslab", min_length=1)
    """MLflow experiment that the campaign's run belongs to."""


class Campaign(Settings):
    """All that decides the outcome of a campaign, but for the machine it runs on."""

    name: str
    """Short name: letters, digits, dot, dash and underscore."""
    data: DataSettings
    model: ModelSettings = ModelSettings()
    objective: ObjectiveSettings = ObjectiveSettings()
    joint: dict[StreamName, JointSettings] = Field(default={})
    train: TrainSettings = TrainSettings()
    parallel: ParallelSettings = ParallelSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    evaluate: EvaluateSettings = EvaluateSettings()
    track: TrackSettings = TrackSettings()

    @field_validator("name")
    @classmethod
    def _plain_name(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", value):
            raise ValueError(
                "must be up to 100 letters, digits, dots, dashes and underscores, beginning with a letter or digit"
            )
        return value

    @field_validator("joint")
    @classmethod
    def _other_names(cls, value: dict[str, JointSettings]) -> dict[str, JointSettings]:
        if MAIN in value:
            raise ValueError(f"`{MAIN}` is the archive of `data`; choose another name")
        return value

    @model_validator(mode="after")
    def _patterns_are_chosen(self) -> Self:
        learned = [kind for kind in self.model.attention if kind.is_learned]
        probed = max((kind.probe_from + kind.probe_steps for kind in learned), default=0)
        if probed >= self.train.steps:
            raise ValueError(
                f"model.attention.probe_steps: probing ends after {probed} of {self.train.steps} train.steps; what is "
                "learned must be used before training ends: give fewer, or a smaller probe_from"
            )
        return self

    @model_validator(mode="after")
    def _ranks_share_the_batch(self) -> Self:
        if self.parallel.ranks is not None:
            make_layout(self.parallel, self.parallel.ranks, self.train.batch)
        return self


def load_campaign(path: Path, assignments: list[str]) -> Campaign:
    """The campaign that a file describes, with `key=value` assignments laid over it.

    The name defaults to the file's, and paths of raw files are taken from the file's directory.

    Raises
    ------
    UserError
        All mistakes of the file at once.
    """
    content = override({"name": path.stem, **read_yaml(path)}, assignments)
    campaign = parse(Campaign, content, str(path))
    folder = path.resolve().parent
    joint = {
        name: other.model_copy(update={"store": absolute(other.store, folder)})
        for name, other in campaign.joint.items()
    }
    begin = campaign.train.init_from
    train = campaign.train.model_copy(update={"init_from": begin and absolute(begin, folder)})
    return campaign.model_copy(update={"data": campaign.data.located(folder), "joint": joint, "train": train})


@dataclass(frozen=True, slots=True)
class CampaignDir:
    """The places inside a campaign's directory."""

    path: Path

    @property
    def campaign_file(self) -> Path:
        """The campaign as it was when it started."""
        return self.path / "campaign.yaml"

    @property
    def site_file(self) -> Path:
        """The site it runs on."""
        return self.path / "site.yaml"

    @property
    def journal(self) -> Path:
        """The append-only record."""
        return self.path / "journal.jsonl"

    @property
    def store(self) -> Path:
        """The staged store."""
        return self.path / "store"

    @property
    def checkpoints(self) -> Path:
        """The checkpoints."""
        return self.path / "checkpoints"

    @property
    def evaluation(self) -> Path:
        """The skill and a forecast map."""
        return self.path / "evaluation"

    @property
    def report(self) -> Path:
        """Plots and the skill table."""
        return self.path / "report"

    @property
    def logs(self) -> Path:
        """What processes printed."""
        return self.path / "logs"

    @property
    def jobs(self) -> Path:
        """Scripts of batch jobs, and what starts them."""
        return self.path / "jobs"

    @property
    def tracking(self) -> Path:
        """Directory of the MLflow database: campaigns side by side share one, to be compared."""
        return self.path.parent / "mlflow"

    def spool(self, segment: int) -> Path:
        """Metrics of a segment of training."""
        return self.path / "metrics" / f"{segment:04d}.jsonl"

    def log(self, step: str, segment: int | None = None) -> Path:
        """What a step, or a segment of it, printed."""
        return self.logs / (f"{step}.log" if segment is None else f"{step}-{segment:04d}.log")

    def stop_file(self, segment: int) -> Path:
        """While it exists, a segment of training stops at its next step."""
        return self.jobs / f"stop-{segment:04d}"

    def read(self) -> Campaign:
        """The frozen campaign.

        Raises
        ------
        UserError
            When this is no campaign's directory.
        """
        if not self.journal.exists():
            raise UserError(f"{self.path}: is no campaign's directory (it has no journal.jsonl); check the path")
        return parse(Campaign, read_yaml(self.campaign_file), str(self.campaign_file))

    def read_site(self) -> Site:
        """The frozen site."""
        return parse(Site, read_yaml(self.site_file), str(self.site_file))


@contextlib.contextmanager
def new_directory(directory: CampaignDir, campaign: Campaign, site: Site) -> Iterator[CampaignDir]:
    """Make a campaign's directory, with the campaign and the site frozen in it, whole or not at all.

    It is made beside its place, given to be completed, and then renamed into place: a kill leaves no half of it, and
    of two that are begun at once one is refused.

    Raises
    ------
    UserError
        When the place is taken, cannot be written, or has a name that batch scripts cannot hold.
    """
    path = directory.path
    if not re.fullmatch(r"[\w./+=@:,-]+", str(path)):
        raise UserError(f"{path}: batch scripts cannot hold spaces or quotes in a path; choose another --dir")
    _check_free(directory)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name[:100]}-", dir=path.parent) as aside:
            draft = CampaignDir(Path(aside) / "campaign")
            for folder in (draft.path, draft.logs, draft.jobs, draft.path / "metrics"):
                folder.mkdir()
            _freeze(draft.site_file, site)
            _freeze(draft.campaign_file, campaign)
            yield draft
            draft.path.rename(path)
    except OSError as error:
        if path.parent.exists() and not path.parent.is_dir():
            raise UserError(f"{path}: cannot be written: {path.parent} is no directory; choose another --dir") from None
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            _check_free(directory)
        refusal = UserError(f"{path}: cannot be made: {error.strerror}; choose another --dir")
        raise disk_error(error, path) or refusal from None


def _check_free(directory: CampaignDir) -> None:
    path = directory.path
    if directory.journal.exists():
        raise UserError(
            f"{path}: already holds a campaign; go on with `hyperslab resume {path}`, or choose another --dir"
        )
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path}: already exists and is no campaign; choose another --dir")


def _freeze(path: Path, settings: Settings) -> None:
    with path.open("x", encoding="utf-8") as file:
        yaml.safe_dump(settings.model_dump(mode="json"), file, sort_keys=False)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def driver_lock(directory: CampaignDir) -> Iterator[None]:
    """Be the only driver of a campaign; the lock falls when the process ends, however it ends.

    Raises
    ------
    UserError
        When another driver has it.
    """
    with _lock_file(directory).open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = lock_owner(directory)
            raise UserError(
                f"{directory.path}: is already running as process {owner.get('pid', '?')} on "
                f"{owner.get('host', 'another host')}; watch it with `hyperslab status {directory.path}`"
            ) from None
        file.seek(0)
        file.truncate()
        json.dump({"host": socket.gethostname(), "pid": os.getpid()}, file)
        file.flush()
        yield


def is_driven(directory: CampaignDir) -> bool:
    """Whether a driver is at work on a campaign."""
    if not _lock_file(directory).exists():
        return False
    with _lock_file(directory).open("r", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def lock_owner(directory: CampaignDir) -> dict[str, Any]:
    """Host and process of the driver that holds, or last held, the lock."""
    try:
        return dict(json.loads(_lock_file(directory).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _lock_file(directory: CampaignDir) -> Path:
    return directory.path / "driver.lock"
