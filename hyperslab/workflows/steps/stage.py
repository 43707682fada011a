"""Staging as Parsl apps: create the store, write its parts side by side, finalise it."""

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from parsl import python_app

from hyperslab.data import staging
from hyperslab.data.recipe import Recipe
from hyperslab.workflows.engine import WORKERS


@python_app(executors=[WORKERS])  # type: ignore[untyped-decorator]
def write_part(path: Path, part: int, threads: int) -> int:
    """Stage one part on a worker; what is finished already is not read again."""
    return staging.write_part(path, part, threads)


@python_app(executors=[WORKERS])  # type: ignore[untyped-decorator]
def finalise(path: Path, inputs: Sequence[Future[int]]) -> str:  # noqa: ARG001
    """Merge the statistics, reread every shard, and write the manifest, once all `inputs` are done."""
    return staging.finalise(path)


def submit(path: Path, recipe: Recipe, threads: int) -> "Future[str]":
    """Submit all of staging; the result is the store's digest."""
    staging.create(path, recipe)
    parts = [write_part(path, part, threads) for part in range(recipe.num_parts)]
    return finalise(path, inputs=parts)  # type: ignore[no-any-return]
