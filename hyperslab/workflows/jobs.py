"""The jobs of a campaign's steps: submitted, awaited, taken over from an earlier driver, ended."""

import threading
import time
from collections.abc import Callable
from dataclasses import asdict

from hyperslab.errors import MISTAKE, CampaignFailed, Stopped, UserError
from hyperslab.parallel import catalog
from hyperslab.site_configs.schema import Site
from hyperslab.workflows import engine
from hyperslab.workflows.campaign import CampaignDir
from hyperslab.workflows.journal import Journal

MODULES = {step: f"hyperslab.workflows.steps.{step}" for step in ("pretrain", "evaluate")}
POLL_SECONDS = 0.3
STOP_GRACE_SECONDS = 60.0


class StepJobs:
    """Runs steps as batch jobs, one at a time, and notes each in the journal."""

    def __init__(self, directory: CampaignDir, site: Site, journal: Journal) -> None:
        self._directory, self._site, self._journal = directory, site, journal
        self._jobs = engine.Jobs(directory)

    def is_left(self, step: str) -> bool:
        """Whether an earlier driver left a job of the step behind whose end nobody has noted."""
        return self._left(step) is not None

    def run(self, step: str, is_done: Callable[[], bool], stop: threading.Event) -> None:
        """Run jobs of a step until it is done; first see one through that an earlier driver left running.

        Raises
        ------
        UserError
            When a job says that a person made a mistake.
        CampaignFailed
            When jobs crash again and again.
        Stopped
            When `stop` is set.
        """
        left, failures = self._left(step), 0
        while left or not is_done():
            before = steps_done(self._directory)
            code = self._await(step, *(left or self._submit(step)), stop)
            left = None
            # A job that came as far as another checkpoint is no failure, however it ended.
            failures = 0 if code == 0 or steps_done(self._directory) > before else failures + 1
            if failures > self._site.retries:
                self._give_up(step)

    def _await(self, step: str, number: int, job: engine.Job, stop: threading.Event) -> int | None:
        """Exit code of a job once it has ended; None when it was killed."""
        while self._jobs.is_running(job):
            if stop.wait(POLL_SECONDS):
                self._end(step, number, job)
                raise Stopped(f"{step} was stopped at step {steps_done(self._directory)}")
        code = self._jobs.exit_code(job)
        self._journal.append("job_ended", step=step, number=number, exit_code=code)
        if code == MISTAKE:
            raise UserError(self._last_words(step, number))
        return code

    def _submit(self, step: str) -> tuple[int, engine.Job]:
        number = sum(event["event"] == "job_submitted" and event["step"] == step for event in self._journal.read()) + 1
        self._directory.stop_file(number).unlink(missing_ok=True)
        job = self._jobs.submit(f"{step}-{number:04d}", script_of(self._directory, self._site, step, number))
        self._journal.append("job_submitted", step=step, number=number, job=asdict(job))
        return number, job

    def _left(self, step: str) -> tuple[int, engine.Job] | None:
        """The job that an earlier driver left running, with its number."""
        submitted = None
        for event in self._journal.read():
            if event.get("step") == step and event["event"] == "job_submitted":
                submitted = event
            elif event.get("step") == step and event["event"] == "job_ended":
                submitted = None
        if submitted is None:
            return None
        job = engine.Job(**submitted["job"])
        self._jobs.adopt(job)
        return submitted["number"], job

    def _end(self, step: str, number: int, job: engine.Job) -> None:
        """Let a job end at its next checkpoint, or end it when it does not."""
        self._directory.stop_file(number).touch()
        deadline = time.monotonic() + STOP_GRACE_SECONDS
        while self._jobs.is_running(job):
            if time.monotonic() > deadline:
                self._jobs.cancel(job)
            time.sleep(POLL_SECONDS)
        self._journal.append("job_ended", step=step, number=number, exit_code=self._jobs.exit_code(job))

    def end_all(self) -> None:
        """Let every job end that an earlier driver left running."""
        for step in MODULES:
            if running := self._left(step):
                self._end(step, *running)

    def _give_up(self, step: str) -> None:
        raise CampaignFailed(
            f"{step} crashed {self._site.retries + 1} times in a row without a checkpoint in between; "
            f"read `hyperslab logs {self._directory.path} --step {step}`, then go on with "
            f"`hyperslab resume {self._directory.path}`"
        )

    def _last_words(self, step: str, number: int) -> str:
        lines = self._directory.log(step, number).read_text(encoding="utf-8", errors="replace").splitlines()
        said = [line.removeprefix("hyperslab: ") for line in lines if line.startswith("hyperslab: ")]
        return said[-1] if said else f"{step} refused its work; read `hyperslab logs {self._directory.path}`"


def steps_done(directory: CampaignDir) -> int:
    """Optimizer steps up to the latest checkpoint."""
    path = catalog.latest(directory.checkpoints)
    return 0 if path is None else catalog.read_progress(path).step


def script_of(directory: CampaignDir, site: Site, step: str, number: int) -> str:
    """The batch script of a job of a step."""
    arguments = ["--segment", str(number)] if step == "pretrain" else []
    return engine.job_script(directory, site, MODULES[step], arguments, directory.log(step, number))
