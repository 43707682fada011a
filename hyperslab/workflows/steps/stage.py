"""Staging as Parsl apps: create the store, write its parts side by side, finalise it."""

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from parsl import python_app

from hyperslab.data import staging
from hyperslab.data.recipe import Recipe
from hyperslab.workflows.engine import WORKERS


@python_app(executors=[WORKERS])  # type: ignore[untyped-decorator]
def write_part(path: Path, part: int) -> int:
    """Stage one part on a worker; what is finished already is not read again."""
    return staging.write_part(path, part)


@python_app(executors=[WORKERS])  # type: ignore[untyped-decorator]
def finalise(path: Path, inputs: Sequence[Future[int]]) -> str:  # noqa: ARG001
    """Merge the statistics and commit, once all `inputs` are done."""
    return staging.finalise(path)


def submit(path: Path, recipe: Recipe) -> "Future[str]":
    """Submit all of staging that is left to do; the result is the store's digest."""
    staging.create(path, recipe)
    parts = [write_part(path, part) for part in staging.unfinished_parts(path, recipe)]
    return finalise(path, inputs=parts)  # type: ignore[no-any-return]
