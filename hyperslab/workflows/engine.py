"""Running things on a site: Parsl's executors for staging, Parsl's providers for batch jobs."""

import contextlib
import logging
import os
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import parsl
import psutil
from parsl.config import Config
from parsl.executors import HighThroughputExecutor, ThreadPoolExecutor
from parsl.executors.base import ParslExecutor
from parsl.executors.high_throughput.errors import ManagerLost, WorkerLost
from parsl.executors.high_throughput.executor import DEFAULT_LAUNCH_CMD
from parsl.jobs.states import JobState, JobStatus
from parsl.launchers import SimpleLauncher
from parsl.providers import LocalProvider

from hyperslab.site_configs.schema import Site
from hyperslab.workflows.campaign import CampaignDir

logger = logging.getLogger(__name__)

DRIVER, WORKERS = "driver", "workers"
KEEP_MEMORY = "export MALLOC_MMAP_THRESHOLD_=67108864 MALLOC_TRIM_THRESHOLD_=268435456"
"""A shell line that lets glibc use freed blocks again: by default it gives those of a chunk's size back to the system,
and staging spends a fifth of its time on fresh pages."""
BINARIES = Path(sys.executable).parent
"""Where Parsl's programs lie; a driver need not have its environment activated."""


def parsl_config(directory: CampaignDir, site: Site, *, staging: bool) -> Config:
    """Parsl's configuration: threads in the driver for the graph, and worker processes where parts are to be staged.

    Parameters
    ----------
    staging
        Whether there is anything to stage; without it no worker processes start.
    """
    executors: list[ParslExecutor] = [ThreadPoolExecutor(label=DRIVER, max_threads=2)]
    if staging:
        executors.append(_workers(site))
    return Config(
        executors=executors,
        run_dir=str(directory.jobs / "parsl"),
        retries=site.retries,
        # Only a lost worker is worth another try: anything else would fail the same way.
        retry_handler=lambda error, _: 1 if isinstance(error, WorkerLost | ManagerLost) else site.retries + 1,
        strategy="simple" if staging else "none",
        # The first worker starts at the strategy's first round, a lost one is replaced at the next.
        strategy_period=0.2,
        usage_tracking=0,
        initialize_logging=False,
    )


def _workers(site: Site) -> HighThroughputExecutor:
    # A killed driver would orphan the interchange for good.
    die_with_driver = [sys.executable, "-m", "hyperslab.processes", "die_with", str(os.getpid())]
    together = shlex.join([sys.executable, "-m", "hyperslab.processes", "together", str(os.getpid())])
    return HighThroughputExecutor(
        label=WORKERS,
        address="127.0.0.1",
        max_workers_per_node=site.staging_workers,
        cores_per_worker=1e-6,
        encrypted=True,
        heartbeat_period=2,
        heartbeat_threshold=10,
        launch_cmd=f"{together} {DEFAULT_LAUNCH_CMD}",
        interchange_launch_cmd=[*die_with_driver, f"{BINARIES}/interchange.py"],
        provider=LocalProvider(
            init_blocks=1,
            max_blocks=1,
            launcher=SimpleLauncher(),
            worker_init=f"{_environment(site)}\n{KEEP_MEMORY}",
        ),
    )


def _environment(site: Site) -> str:
    """Shell lines that every process on a node starts with."""
    threads = site.threads_per_rank
    return "\n".join(
        [
            "trap '' HUP",
            f"export OMP_NUM_THREADS={threads} MKL_NUM_THREADS={threads}",
            f'export PATH={shlex.quote(str(BINARIES))}:"$PATH"',
            *site.worker_init.splitlines(),
        ]
    )


def job_script(directory: CampaignDir, site: Site, module: str, arguments: list[str], log: Path) -> str:
    """The batch script that runs a step of a campaign on the site's nodes."""
    command = shlex.join([sys.executable, "-m", module, str(directory.path), *arguments])
    return f"{_environment(site)}\nexec >> {shlex.quote(str(log))} 2>&1\nexec {command}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A batch job, as the journal keeps it: enough to find it again from another process."""

    id: str
    script: str
    submitted: float
    """Time of day in seconds since 1970-01-01."""


class Jobs:
    """Batch jobs of one campaign, through the provider of its site."""

    def __init__(self, directory: CampaignDir) -> None:
        self._provider = LocalProvider(launcher=SimpleLauncher())
        self._provider.script_dir = str(directory.jobs)

    def submit(self, name: str, script: str) -> Job:
        """Start a job; it goes on when this process ends."""
        identity = self._provider.submit(script, 1, name)
        return Job(id=identity, script=self._provider.resources[identity]["script_path"], submitted=time.time())

    def adopt(self, job: Job) -> None:
        """Take over a job that another process submitted."""
        self._provider.resources[job.id] = {
            "job_id": job.id,
            "status": JobStatus(JobState.RUNNING),
            "remote_pid": int(job.id),
            "script_path": job.script,
        }

    def is_running(self, job: Job) -> bool:
        """Whether a job has not ended yet."""
        status = self._provider.status([job.id])[0]
        return not status.terminal and _is_same_process(job)

    def exit_code(self, job: Job) -> int | None:
        """Exit code of a job that has ended; None where it was killed."""
        code: int | None = self._provider.status([job.id])[0].exit_code
        return code

    def cancel(self, job: Job) -> None:
        """End a job at once."""
        if self.is_running(job):
            self._provider.cancel([job.id])


def _is_same_process(job: Job) -> bool:
    """Whether the process of a job's number is that job: after a restart of the machine it may be another's."""
    try:
        # The job's shell starts just before its submission is noted.
        return psutil.Process(int(job.id)).create_time() <= job.submitted + 1
    except psutil.NoSuchProcess:
        return False


@contextlib.contextmanager
def loaded(config: Config) -> Iterator[None]:
    """Parsl, from its start to the end of its worker processes."""
    with parsl.load(config):
        yield
