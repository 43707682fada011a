from pathlib import Path

import pytest

from hyperslab.data.store import Store
from hyperslab.parallel.layout import Layout
from tests.parallel.ranks import on_ranks
from tests.parallel.training import Outcome, Task, make_store, train_task


@pytest.fixture(scope="session")
def store() -> Store:
    """A store in memory; tests change copies of it."""
    return make_store()


@pytest.fixture(scope="session")
def one_rank(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The run of `TRAIN` on one rank, uninterrupted."""
    task = Task(store=store, checkpoint_dir=tmp_path_factory.mktemp("one"), layout=Layout(replicate=1, shard=1))
    (outcome,) = on_ranks(1, train_task, task)
    return outcome


@pytest.fixture(scope="session")
def two_ranks_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of `two_ranks`."""
    return tmp_path_factory.mktemp("two")


@pytest.fixture(scope="session")
def two_ranks(store: Store, two_ranks_dir: Path) -> list[Outcome]:
    """The run of `TRAIN` on two ranks that share the parameters out, uninterrupted."""
    task = Task(store=store, checkpoint_dir=two_ranks_dir, layout=Layout(replicate=1, shard=2))
    return on_ranks(2, train_task, task)
