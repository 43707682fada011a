import os
import time

import pytest
import torch
import torch.distributed as dist

from tests.parallel.ranks import RanksFailed, on_ranks


def sum_of_ranks(start: int) -> tuple[int, int, torch.Tensor]:
    total = torch.tensor([float(start + dist.get_rank())])
    dist.all_reduce(total)
    return dist.get_rank(), torch.get_num_threads(), total


def test_ranks_return_their_results_in_order():
    # 10 + 11 = 21 on both.
    results = on_ranks(2, sum_of_ranks, 10)

    assert [(rank, threads) for rank, threads, _ in results] == [(0, 1), (1, 1)]
    assert [total.tolist() for _, _, total in results] == [[21.0], [21.0]]


def test_an_exception_on_one_rank_fails_the_test_while_the_other_waits():
    def body() -> None:
        if dist.get_rank() == 1:
            raise LookupError("rank one lost its way")
        time.sleep(60)

    with pytest.raises(RanksFailed, match=r"rank 1: (.|\n)*LookupError: rank one lost its way"):
        on_ranks(2, body)


def test_a_rank_that_dies_fails_the_test():
    with pytest.raises(RanksFailed, match="rank 0: died without a word"):
        on_ranks(1, lambda: os._exit(0))


def test_a_rank_that_hangs_fails_the_test_and_is_ended(tmp_path):
    def body() -> None:
        (tmp_path / "pid").write_text(str(os.getpid()))
        time.sleep(60)

    with pytest.raises(RanksFailed, match=r"ranks \[0\] of 1 have not returned in time"):
        on_ranks(1, body, timeout_seconds=3)

    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
