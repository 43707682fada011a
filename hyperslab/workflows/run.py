"""Driving a campaign: plan > stage > pretrain > evaluate > report, as a graph of Parsl apps."""

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import FrameType

from parsl import python_app

import hyperslab
from hyperslab.data import staging, store, verify
from hyperslab.data.files import read_json
from hyperslab.data.recipe import Recipe, extend_recipe
from hyperslab.data.sources import source_of
from hyperslab.data.sources.paths import expand
from hyperslab.errors import Stopped, UserError, disk_error
from hyperslab.site_configs.schema import Site
from hyperslab.workflows import engine, tracking
from hyperslab.workflows.campaign import Campaign, CampaignDir, driver_lock, is_driven, new_directory
from hyperslab.workflows.jobs import POLL_SECONDS, STOP_GRACE_SECONDS, StepJobs, steps_done
from hyperslab.workflows.journal import Journal
from hyperslab.workflows.logs import logging_to
from hyperslab.workflows.steps import STEPS, report, stage
from hyperslab.workflows.steps.plan import Plan, make_plan


def start(campaign: Campaign, site: Site, recipe: Recipe, directory: CampaignDir) -> None:
    """Make the directory of a new campaign, with the recipe of its store, and note its beginning.

    Raises
    ------
    UserError
        When the directory cannot be made.
    """
    with new_directory(directory, campaign, site) as draft:
        journal = Journal(draft.journal)
        journal.append("created", key=uuid.uuid4().hex, version=hyperslab.__version__, commit=_commit())
        _note_store(journal, recipe)
        staging.create(draft.store, recipe)


def drive(
    directory: CampaignDir,
    watch: Callable[[], None],
    *,
    until: str = STEPS[-1],
    prepare: Callable[["Driver"], None] | None = None,
) -> None:
    """Do all that is left to do in a campaign; return when it is finished.

    Parameters
    ----------
    watch
        Called a few times a second, to show progress.
    until
        The last step to do.
    prepare
        What to do first, as the only driver: an append, a repair.

    Raises
    ------
    UserError
        When a person's mistake stops it.
    CampaignFailed
        When a step crashes again and again.
    Stopped
        When it was cancelled or interrupted.
    """
    with driver_lock(directory), logging_to(directory.log("driver")):
        journal = Journal(directory.journal)
        journal.append("driver_started", host=socket.gethostname(), pid=os.getpid())
        try:
            driver = Driver(directory, until)
            if prepare is not None:
                prepare(driver)
            driver.run(watch)
        except BaseException as error:
            with contextlib.suppress(OSError):  # a full disk must not hide the error itself
                how = "stopped" if isinstance(error, Stopped | KeyboardInterrupt) else "failed"
                journal.append("driver_ended", how=how, message=str(error))
                tracking.relay_if_possible(directory, directory.read())
            raise
        journal.append("driver_ended", how="finished" if until == STEPS[-1] else "staged", message="")


class Driver:
    """One process's work on a campaign, from wherever the last one left it."""

    def __init__(self, directory: CampaignDir, until: str = STEPS[-1]) -> None:
        self.directory = directory
        self.campaign = directory.read()
        self.site = directory.read_site()
        self.journal = Journal(directory.journal)
        self.jobs = StepJobs(directory, self.site, self.journal)
        self.stop = threading.Event()
        self.until = until
        self._repairs = False

    def run(self, watch: Callable[[], None]) -> None:
        """Submit the graph and see it through."""
        on_driver = python_app(executors=[engine.DRIVER])
        config = engine.parsl_config(self.directory, self.site, staging=not self._is_staged())
        relay = tracking.Relay(self.directory, self.campaign)
        with _stop_signals(self.stop), engine.loaded(config):
            relay.start()
            try:
                last = on_driver(self.plan)(None)
                for step in STEPS[1 : STEPS.index(self.until) + 1]:
                    last = on_driver(getattr(self, step))(last)
                self._wait(last, watch)
            finally:
                relay.close()
                watch()

    def append(self, patterns: list[str]) -> None:
        """Lengthen the store's recipe by the files that are not in it yet; go on with an append that was cut off.

        Parameters
        ----------
        patterns
            Paths, patterns or URLs of raw files; those of the campaign where empty.

        Raises
        ------
        UserError
            When there are none, or they do not continue the archive.
        """
        recipe = longer_recipe(self.directory, patterns)
        if recipe is not None:
            staging.create(self.directory.store, recipe)
            self.journal.append("appended")
            _note_store(self.journal, recipe)

    def repair(self) -> None:
        """Mark what is damaged in the store, for staging to write it again."""
        parts = verify.forget_damaged(self.directory.store)
        self._repairs = True
        self.journal.append("repaired", parts=parts)

    def _is_staged(self) -> bool:
        return not self._repairs and staging.is_complete(self.directory.store)

    def _wait(self, last: Future[None], watch: Callable[[], None]) -> None:
        while not last.done():
            watch()
            if self._is_cancelled():
                self.stop.set()
            time.sleep(POLL_SECONDS)
        error = last.exception()
        if error is not None:
            # The last app fails because an earlier one did: that one's error is what happened.
            raise error.__cause__ or error

    def _is_cancelled(self) -> bool:
        """Whether somebody has asked for an end since this driver began."""
        asked = False
        for event in self.journal.read():
            asked = event["event"] == "cancel_requested" or (asked and event["event"] != "driver_started")
        return asked

    def plan(self, _: object) -> Recipe:
        """Work out what training follows from the store's recipe."""
        with self._step("plan"):
            recipe = staging.read_recipe(self.directory.store)
            if self.until != "stage":
                _note_plan(self.journal, make_plan(self.campaign, self.site, recipe))
        return recipe

    def stage(self, recipe: Recipe) -> None:
        """Stage the raw files into a verified store."""
        path = self.directory.store
        if self._is_staged():
            store.check_present(path, store.read_manifest(path)["files"])
            return
        with self._step("stage"):
            _check_room(path, recipe)
            staged = stage.submit(path, recipe)
            while not staged.done():
                if self.stop.wait(POLL_SECONDS):
                    raise Stopped("staging was stopped; finished parts are kept")
            error = staged.exception()
            if error is not None:
                raise error.__cause__ if isinstance(error.__cause__, UserError) else error

    def pretrain(self, _: object) -> None:
        """Train segment after segment, each from the latest checkpoint, up to the last step."""
        self._run_jobs("pretrain", lambda: steps_done(self.directory) >= self.campaign.train.steps)

    def evaluate(self, _: object) -> None:
        """Score the trained model on the held-out period."""
        self._run_jobs("evaluate", self._is_evaluated)
        if steps_done(self.directory) < self.campaign.train.steps:
            # The last checkpoint turned out to be damaged, and was passed over: its steps are done again.
            self.pretrain(None)
            self._run_jobs("evaluate", self._is_evaluated)

    def report(self, _: object) -> None:
        """Draw the plots and complete the MLflow run."""
        if self.journal.last("reported") is None:
            with self._step("report"):
                report.write_report(self.directory)
                self.journal.append("reported")
        tracking.relay_if_possible(self.directory, self.campaign)

    def _run_jobs(self, step: str, is_done: Callable[[], bool]) -> None:
        if not is_done() or self.jobs.is_left(step):
            with self._step(step):
                self.jobs.run(step, is_done, self.stop)

    @contextlib.contextmanager
    def _step(self, name: str) -> Iterator[None]:
        self.journal.append("step_started", step=name)
        try:
            yield
        except OSError as error:
            raise disk_error(error, self.directory.path) or error from None
        self.journal.append("step_finished", step=name)

    def _is_evaluated(self) -> bool:
        try:
            return bool(read_json(self.directory.evaluation / "skill.json")["step"] == steps_done(self.directory))
        except (OSError, ValueError, KeyError):  # absent, or damaged: evaluated anew
            return False


def longer_recipe(directory: CampaignDir, patterns: list[str]) -> Recipe | None:
    """The recipe of a campaign's store with the files that are not in it yet; None where an append of them has begun.

    Raises
    ------
    UserError
        When there are none, or they do not continue the archive.
    """
    data = directory.read().data
    recipe = staging.read_recipe(directory.store)
    known = {file.path for file in recipe.index.files}
    more = [path for path in expand(patterns or data.files) if path not in known]
    if more:
        index = source_of(data.source).scan(more, data.model_copy(update={"files": more}))
        return extend_recipe(recipe, index)
    if staging.is_complete(directory.store):
        named = "--files" if patterns else "data.files"
        raise UserError(f"{directory.store}: already holds every file that {named} names; name later files")
    return None


def cancel(directory: CampaignDir) -> None:
    """Stop a campaign at its next checkpoint: ask its driver, or end its jobs where no driver is left.

    Raises
    ------
    UserError
        When there is nothing to stop, or its driver does not answer.
    """
    directory.read()
    journal = Journal(directory.journal)
    ended = journal.last("driver_ended")
    if ended and ended["how"] == "finished" and not is_driven(directory):
        raise UserError(f"{directory.path}: has finished; there is nothing to stop")
    journal.append("cancel_requested")
    try:
        with driver_lock(directory):
            Driver(directory).jobs.end_all()
            journal.append("driver_ended", how="stopped", message="cancelled")
            tracking.relay_if_possible(directory, directory.read())
    except UserError:
        deadline = time.monotonic() + STOP_GRACE_SECONDS + 30
        while time.monotonic() < deadline:
            ended = journal.last("driver_ended")
            asked = journal.last("cancel_requested")
            if ended and asked and ended["time"] >= asked["time"]:
                if ended["how"] == "finished":
                    raise UserError(f"{directory.path}: finished before it could be stopped") from None
                return
            time.sleep(POLL_SECONDS)
        raise UserError(
            f"{directory.path}: its driver did not answer; it may run on another host, or hang: "
            "look at `hyperslab status`"
        ) from None


def _note_store(journal: Journal, recipe: Recipe) -> None:
    journal.append("store_planned", parts=recipe.num_parts, bytes=recipe.total_bytes)


def _note_plan(journal: Journal, plan: Plan) -> None:
    journal.append("planned", windows=plan.num_windows, layout=plan.layout.to_json())


def _check_room(path: Path, recipe: Recipe) -> None:
    state = os.statvfs(path.parent)
    free = state.f_bavail * state.f_frsize
    left = len(staging.unfinished_parts(path, recipe)) / max(1, recipe.num_parts)
    needed = int(recipe.total_bytes * left)
    if free < needed:
        raise UserError(
            f"{path.parent}: {free:,} bytes are free, the store may need {needed:,}; "
            "free some room, or choose another --dir"
        )


def _commit() -> str:
    """The commit of a development checkout, or nothing."""
    folder = Path(hyperslab.__file__).parent.parent
    if not (folder / ".git").exists():
        return ""
    command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


@contextlib.contextmanager
def _stop_signals(stop: threading.Event) -> Iterator[None]:
    """Let an interrupt, or a polite kill, stop the campaign at its next checkpoint; a second one ends it at once."""

    def ask(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
