import pytest
import torch.distributed as dist

from hyperslab.parallel.lost import Place, RankLost, naming

SILENT = "another rank did not answer in time (timeout_seconds of the site); it hangs, or waits for one that does"


def told(place: Place, error: RuntimeError) -> str:
    """What a rank says when a collective raises."""
    with pytest.raises(RankLost) as caught, naming(place):
        raise error
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        # As torch 2.13 raises them.
        ("[/__w/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:283", "another rank has ended"),
        ("[/__w/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:25984: Con\nreset", "another rank has ended"),
        ("[/__w/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation", SILENT),
        ("[/__w/gloo/transport/tcp/unbound_buffer.cc:129] Timed out waiting 600000ms for send operation", SILENT),
        ("Wait timeout", SILENT),
    ],
)
def test_a_lost_rank_is_told_in_one_line_that_says_where(text, reason):
    place = Place(rank=3, step=0, doing="reading the checkpoint")
    place.at(12, "gradient norm")

    assert told(place, RuntimeError(text)) == f"rank 3: step 12, gradient norm: {reason}"


def test_outside_of_training_no_step_is_told():
    assert told(Place(rank=1, doing="joining the others"), RuntimeError("Wait timeout")) == (
        f"rank 1: joining the others: {SILENT}"
    )


def test_errors_of_other_backends_are_told_by_their_first_line():
    error = dist.DistBackendError("NCCL error: remote process exited\nmore of it")

    assert told(Place(rank=1, step=2, doing="metrics"), error) == (
        "rank 1: step 2, metrics: NCCL error: remote process exited"
    )


@pytest.mark.parametrize("error", [RuntimeError("shapes cannot be multiplied"), ValueError("Wait timeout")])
def test_any_other_error_passes_as_it_is(error):
    with pytest.raises(type(error)) as caught, naming(Place(rank=0, step=1, doing="metrics")):
        raise error

    assert caught.value is error
