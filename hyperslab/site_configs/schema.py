"""What a machine offers: its scheduler, its nodes, and how processes start on it."""

from typing import Literal

from pydantic import Field

from hyperslab.settings import Settings


class Site(Settings):
    """One machine, as its YAML file describes it."""

    name: str
    """What the site is called in the record; `--site` takes this name for the sites that Hyperslab knows."""
    scheduler: Literal["local"] = "local"
    """How jobs are started: `local` runs them on this machine."""
    ranks_per_node: int = Field(default=1, ge=1)
    """Processes of training on a node: one for each accelerator, or for each core or two without any."""
    threads_per_rank: int = Field(default=1, ge=1)
    """Threads of one such process."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the model computes."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Precision of the model's products; sums, parameters and the optimizer stay in fp32."""
    staging_workers: int = Field(default=1, ge=1)
    """Staging tasks that run at a time; each needs about 400 MiB of memory."""
    shard_mebibytes: float = Field(default=256, gt=0)
    """Size of a shard before compression, to suit the file system: large where many files are slow (Lustre)."""
    reading_threads: int = Field(default=1, ge=1, le=256)
    """Threads with which each process of training reads ahead."""
    reading_mebibytes: float = Field(default=1024, gt=0)
    """Memory of each process of training for samples that are read ahead."""
    timeout_seconds: float = Field(default=600, gt=0)
    """How long processes of training wait for one another; then they take one for lost, and the job has crashed."""
    retries: int = Field(default=2, ge=0)
    """Times that a job is started again after a crash, when no checkpoint came in between."""
    worker_init: str = ""
    """Shell lines run before Hyperslab on a node, such as `module load`."""
