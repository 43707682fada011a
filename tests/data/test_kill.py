"""Kill -9 at any moment of staging, and of committing: the store that comes out is the same to the last bit."""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hyperslab.data import staging
from hyperslab.data.recipe import Recipe
from hyperslab.data.store import commit_path, is_finished, open_store
from hyperslab.data.verify import verify
from hyperslab.errors import UserError
from tests.conftest import make_store_recipe, stage, write_netcdf

KILLS = 20
SPLITS = {"train": (0, 160), "validation": (160, 180), "test": (180, 200)}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """200 frames in 50 parts."""
    return make_store_recipe([write_netcdf(tmp_path_factory.mktemp("raw") / "raw.nc", frames=200)], SPLITS, 4)


def killed_after(seconds: float, work: Callable[[], object]) -> bool:
    """Do the work in a process of its own, and kill that one after a while; whether it was killed."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def test_twenty_kills_in_one_staging_change_nothing(tmp_path: Path, recipe: Recipe) -> None:
    began = time.monotonic()
    undisturbed = open_store(stage(tmp_path / "undisturbed", recipe)).digest
    whole = time.monotonic() - began
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    chance = random.Random(seed)
    path = tmp_path / "store"
    kills = 0
    while kills < KILLS:
        # Work begins where the last one ended: a few parts later each time, until the commit itself is hit.
        kills += killed_after(chance.uniform(0, 3 * whole / KILLS), lambda: stage(path, recipe))
        if is_finished(path) and staging.is_complete(path):
            assert open_store(path).digest == undisturbed
            if kills < KILLS:
                for part in range(0, recipe.num_parts, 2):
                    (path / ".hyperslab" / "parts" / f"{part:06d}.json").unlink()
    stage(path, recipe)
    assert open_store(path).digest == undisturbed
    assert list(verify(path)) == []


def test_a_commit_that_is_killed_anywhere_is_completed_by_the_next(tmp_path: Path, recipe: Recipe) -> None:
    undisturbed = open_store(stage(tmp_path / "undisturbed", recipe)).digest
    chance = random.Random(1)
    path = tmp_path / "store"
    staging.create(path, recipe)
    for part in range(recipe.num_parts):
        staging.write_part(path, part)
    began = time.monotonic()
    staging.finalise(path)
    length = time.monotonic() - began
    for _ in range(KILLS):
        killed_after(chance.uniform(0, length), lambda: staging.finalise(path))
        if commit_path(path).exists():
            with pytest.raises(UserError, match="was being completed when it was interrupted"):
                open_store(path)
        else:
            assert open_store(path).digest == undisturbed
    assert staging.finalise(path) == undisturbed
    assert list(verify(path)) == []
