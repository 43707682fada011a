import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest
import torch
import torch.distributed as dist

from hyperslab.errors import UserError
from hyperslab.parallel import launch as launching
from hyperslab.parallel import trainer
from hyperslab.parallel.launch import STOP_SIGNALS, StopRequest, start_ranks, under_torchrun
from hyperslab.parallel.layout import Layout
from hyperslab.parallel.lost import Place, naming
from hyperslab.parallel.saver import Saver
from hyperslab.parallel.tasks import FieldTask
from hyperslab.processes import die_with_parent
from tests.parallel.training import Task, train_task

Launch = Callable[..., BaseProcess]
LONG_SECONDS = 30
"""A rank that still waits after so long was not ended."""


@pytest.fixture
def launch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launch]:
    """Start a process that starts ranks; it ends, and its ranks with it, when the test does."""
    directory = tmp_path_factory.mktemp("launch")
    started: list[BaseProcess] = []

    def start(body: Callable[[], int], num_ranks: int = 2, timeout_seconds: float = 2 * LONG_SECONDS) -> BaseProcess:
        arguments = (body, num_ranks, timeout_seconds, directory, os.getpid())
        process = multiprocessing.get_context("fork").Process(target=_start, args=arguments)
        process.start()
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.join()


def _start(body: Callable[[], int], num_ranks: int, timeout_seconds: float, directory: Path, parent: int) -> NoReturn:
    die_with_parent(parent)
    tempfile.tempdir = str(directory)  # a killed process leaves its rendezvous behind: not in /tmp
    torch.set_num_threads(1)
    sys.exit(start_ranks(body, num_ranks, timeout_seconds))


def exit_code_of(process: BaseProcess, timeout_seconds: float = LONG_SECONDS - 10) -> int:
    process.join(timeout_seconds)
    assert process.exitcode is not None, "it hangs"
    return process.exitcode


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never comes"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """Whether a process still runs; a zombie does not, once all of its threads have ended."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        return len(threads) > 1 or psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, FileNotFoundError):
        return False


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal (`SigCgt` in proc(5))."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    mask = next(line.split()[1] for line in lines if line.startswith("SigCgt"))
    return bool(int(mask, 16) >> (number - 1) & 1)


def tell(directory: Path, content: object) -> None:
    """Leave a word of this rank, whole or not at all."""
    draft = directory / f".{dist.get_rank()}"
    draft.write_text(json.dumps(content))
    draft.rename(directory / str(dist.get_rank()))


def told(directory: Path, num_ranks: int = 2) -> list[object]:
    """The words of all ranks, as far as they have come."""
    return [json.loads(path.read_text()) for rank in range(num_ranks) if (path := directory / str(rank)).exists()]


# Exit codes


def test_ranks_are_joined_in_a_group_and_end_with_zero(launch, tmp_path):
    def body() -> int:
        total = torch.tensor([10 + dist.get_rank()])
        dist.all_reduce(total)
        tell(tmp_path, [os.environ["RANK"], os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"], total.item()])
        return 0

    assert exit_code_of(launch(body)) == 0
    assert told(tmp_path) == [["0", "0", "2", 21], ["1", "1", "2", 21]]


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("leave", [sys.exit, os._exit])
def test_the_code_of_the_rank_that_fails_is_returned_and_the_other_is_ended(launch, tmp_path, failing, leave):
    def body() -> int:
        tell(tmp_path, os.getpid())
        if dist.get_rank() == failing:
            wait_until(lambda: len(told(tmp_path)) == 2)
            leave(3)
        time.sleep(LONG_SECONDS)
        return 0

    assert exit_code_of(launch(body)) == 3
    pids = told(tmp_path)
    assert len(pids) == 2
    assert not any(is_running(int(str(pid))) for pid in pids)


def test_a_rank_that_fails_ends_one_that_waits_for_it_in_a_collective(launch):
    def body() -> int:
        if dist.get_rank() == 0:
            os._exit(3)
        dist.all_reduce(torch.ones(1))
        return 0

    assert exit_code_of(launch(body)) == 3  # though the other one notices, too


def test_a_code_that_a_body_returns_ends_the_other_rank_too(launch):
    def body() -> int:
        if dist.get_rank() == 1:
            return 3
        time.sleep(LONG_SECONDS)
        return 0

    assert exit_code_of(launch(body), timeout_seconds=3) == 3


def test_a_persons_mistake_ends_with_two_and_its_message(launch, capfd):
    def body() -> int:
        if dist.get_rank() == 1:
            raise UserError("campaign.yaml: train.steps: found 0; try 1")
        time.sleep(LONG_SECONDS)
        return 0

    assert exit_code_of(launch(body)) == 2
    error = capfd.readouterr().err
    assert "hyperslab: campaign.yaml: train.steps: found 0; try 1\n" in error
    assert "Traceback" not in error


def test_an_exception_ends_with_one_and_its_traceback(launch, capfd):
    def body() -> int:
        if dist.get_rank() == 1:
            raise LookupError("a defect")
        time.sleep(LONG_SECONDS)
        return 0

    assert exit_code_of(launch(body)) == 1
    error = capfd.readouterr().err
    assert "Traceback" in error
    assert "LookupError: a defect" in error


def test_a_rank_that_is_killed_ends_with_128_and_its_signal(launch, capfd):
    def body() -> int:
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(LONG_SECONDS)
        return 0

    assert exit_code_of(launch(body)) == 128 + 9
    # The other one, which was ended for it, is not said to be the trouble.
    assert capfd.readouterr().err == "rank 1 was killed by signal 9\n"


def test_the_mistake_of_one_rank_counts_before_the_failure_it_causes_on_another(launch, tmp_path):
    def body() -> int:
        tell(tmp_path, os.getpid())
        if dist.get_rank() == 1:
            # A busy machine, in which the process that watches gets no turn until both ranks have ended.
            os.kill(os.getppid(), signal.SIGSTOP)
            wait_until(lambda: psutil.Process(os.getppid()).status() == psutil.STATUS_STOPPED)
            raise UserError("the mistake")
        dist.recv(torch.ones(1), src=1)
        return 0

    process = launch(body)
    wait_until(lambda: len(told(tmp_path)) == 2 and not any(is_running(int(str(pid))) for pid in told(tmp_path)))
    assert process.pid is not None
    os.kill(process.pid, signal.SIGCONT)

    assert exit_code_of(process) == 2


def test_a_rank_that_ends_early_waits_for_the_others(launch, tmp_path):
    # Else it would take the group's rendezvous with it.
    def body() -> int:
        tell(tmp_path, os.getpid())
        if dist.get_rank() == 0:
            wait_until(lambda: len(told(tmp_path)) == 2)
            time.sleep(0.3)
            return 0 if is_running(int(str(told(tmp_path)[1]))) else os._exit(5)
        return 0

    assert exit_code_of(launch(body)) == 0


# Ranks that are lost

IN_FORWARD = (FieldTask, "loss_of", 2, "forward and backward")
IN_METRICS = (trainer, "share", 2, "metrics")
IN_VALIDATION = (trainer, "validate", 1, "validation")
IN_CHECKPOINT = (Saver, "save", 1, "checkpoint")
"""A function, the call of it that falls in step 2, and what ranks do in it."""

# A checkpoint is written beside training: the others go on until they need the lost rank.
SAID = {"checkpoint": "step 3, forward and backward"}

ENDED = "another rank has ended"
SILENT = "another rank did not answer in time (timeout_seconds of the site); it hangs, or waits for one that does"


def lose_last_rank(number: int, owner: object, name: str, call: int, directory: Path) -> None:
    """Send the last rank a signal in a call of a function, once all ranks have come to that."""
    original, calls, world = getattr(owner, name), 0, dist.get_world_size()

    def fatal(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            tell(directory, "here")
            if dist.get_rank() == world - 1:
                wait_until(lambda: len(told(directory, world)) == world)
                os.kill(os.getpid(), number)
        return original(*arguments, **named)

    pytest.MonkeyPatch().setattr(owner, name, fatal)


def train_and_lose(number: int, place: tuple[object, str, int, str], task: Task, directory: Path) -> Callable[[], int]:
    def body() -> int:
        lose_last_rank(number, *place[:3], directory)
        train_task(task)
        return 0

    return body


@pytest.mark.parametrize("place", [IN_FORWARD, IN_METRICS, IN_VALIDATION, IN_CHECKPOINT], ids=lambda place: place[3])
def test_a_rank_that_is_killed_in_a_step_ends_the_other_which_says_where(
    launch, store, tmp_path, monkeypatch, capfd, place
):
    monkeypatch.setattr(launching, "LAST_WORDS_SECONDS", LONG_SECONDS)
    task = Task(store=store, checkpoint_dir=tmp_path / "c", layout=Layout(replicate=1, shard=2), every=2)

    assert exit_code_of(launch(train_and_lose(signal.SIGKILL, place, task, tmp_path))) == 128 + 9

    lines = capfd.readouterr().err.splitlines()
    assert set(lines) == {
        "rank 1 was killed by signal 9",
        f"rank 0: {SAID.get(place[3], f'step 2, {place[3]}')}: {ENDED}",
    }
    assert len(lines) == 2


@pytest.mark.parametrize("place", [IN_FORWARD, IN_CHECKPOINT], ids=lambda place: place[3])
def test_a_rank_that_hangs_in_a_step_ends_the_other_which_says_where(launch, store, tmp_path, capfd, place):
    task = Task(store=store, checkpoint_dir=tmp_path / "c", layout=Layout(replicate=1, shard=2), every=2)

    process = launch(train_and_lose(signal.SIGSTOP, place, task, tmp_path), timeout_seconds=5)

    assert exit_code_of(process) == 1
    assert capfd.readouterr().err == f"rank 0: {SAID.get(place[3], f'step 2, {place[3]}')}: {SILENT}\n"


def test_a_rank_that_hangs_among_copies_of_the_model_ends_all_others(launch, store, tmp_path, capfd):
    # Copies make groups of their own beside the one of all ranks, for which PyTorch has a time-out of 30 minutes.
    task = Task(store=store, checkpoint_dir=tmp_path / "c", layout=Layout(replicate=2, shard=2))

    process = launch(train_and_lose(signal.SIGSTOP, IN_FORWARD, task, tmp_path), num_ranks=4, timeout_seconds=5)

    assert exit_code_of(process) == 1
    lines = capfd.readouterr().err.splitlines()
    # The first one to speak ends the others; some of them may still have noticed that it went.
    assert 1 <= len(lines) <= 3
    assert any(line.endswith(f": step 2, forward and backward: {SILENT}") for line in lines)
    assert all(line.startswith("rank ") and ": step 2, " in line for line in lines)


@pytest.mark.parametrize("seconds", [7, 31])
def test_every_group_has_the_time_out_that_was_asked_for(launch, tmp_path, seconds):
    def body() -> int:
        groups = [dist.group.WORLD, dist.new_group([0, 1])]
        tell(tmp_path, [group._get_backend(torch.device("cpu")).options._timeout.total_seconds() for group in groups])
        return 0

    assert exit_code_of(launch(body, timeout_seconds=seconds)) == 0
    assert told(tmp_path) == [[seconds, seconds]] * 2


def test_a_rank_that_never_joins_ends_the_other_which_says_so(launch, monkeypatch, capfd):
    joined = launching.process_group

    def never(*arguments: Any) -> Any:
        if os.environ["RANK"] == "1":
            time.sleep(LONG_SECONDS)
        return joined(*arguments)

    monkeypatch.setattr(launching, "process_group", never)

    assert exit_code_of(launch(lambda: 0, timeout_seconds=1)) == 1
    assert capfd.readouterr().err == f"rank 0: joining the others: {SILENT}\n"


def test_the_mistake_of_one_rank_is_the_last_of_the_lines_that_are_marked(launch, capfd):
    # A driver takes the last marked line for what happened; the other rank may have a word to say as well.
    def body() -> int:
        with naming(Place(rank=dist.get_rank(), step=3, doing="metrics")):
            if dist.get_rank() == 1:
                raise UserError("the mistake")
            dist.all_reduce(torch.ones(1))
        return 0

    assert exit_code_of(launch(body)) == 2
    lines = capfd.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("hyperslab: ")] == ["hyperslab: the mistake"]
    assert set(lines) <= {"hyperslab: the mistake", f"rank 0: step 3, metrics: {ENDED}"}


# Stopping


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_that_asks_to_stop_reaches_every_rank(launch, tmp_path, number):
    def body() -> int:
        stop_requested = StopRequest(tmp_path / "stop")
        tell(tmp_path, "ready")
        wait_until(stop_requested)
        tell(tmp_path, "stopped")
        return 0

    process = launch(body)
    wait_until(lambda: told(tmp_path) == ["ready", "ready"])
    assert process.pid is not None
    pid = process.pid
    wait_until(lambda: catches(pid, number))
    os.kill(pid, number)

    assert exit_code_of(process) == 0
    assert told(tmp_path) == ["stopped", "stopped"]


def test_ranks_die_with_the_process_that_started_them(launch, tmp_path):
    def body() -> int:
        tell(tmp_path, os.getpid())
        time.sleep(LONG_SECONDS)
        return 0

    process = launch(body)
    wait_until(lambda: len(told(tmp_path)) == 2)
    pids = [int(str(pid)) for pid in told(tmp_path)]
    assert all(is_running(pid) for pid in pids)

    process.kill()

    wait_until(lambda: not any(is_running(pid) for pid in pids))


@pytest.fixture
def own_handlers() -> Iterator[None]:
    """Put this process's handlers back after the test."""
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("own_handlers")
def test_a_stop_request_sees_its_file(tmp_path):
    stop_requested = StopRequest(tmp_path / "stop")
    assert not stop_requested()

    (tmp_path / "stop").touch()

    assert stop_requested()


@pytest.mark.usefixtures("own_handlers")
@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_stop_request_notes_each_signal_that_asks_to_stop(tmp_path, number):
    stop_requested = StopRequest(tmp_path / "stop")
    assert not stop_requested()

    signal.raise_signal(number)

    assert stop_requested()


# Launchers


@pytest.mark.parametrize(
    ("names", "expected"),
    [(["RANK", "WORLD_SIZE"], True), (["RANK"], False), (["WORLD_SIZE"], False), ([], False)],
)
def test_a_process_is_one_of_torchruns_when_it_has_a_rank_and_a_world_size(monkeypatch, names, expected):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name in names:
        monkeypatch.setenv(name, "1")

    assert under_torchrun() is expected
