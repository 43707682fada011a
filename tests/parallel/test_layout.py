import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperslab.errors import UserError
from hyperslab.parallel.config import ParallelSettings
from hyperslab.parallel.layout import Layout, make_layout


@given(replicate=st.integers(1, 5), shard=st.integers(1, 5), per_rank=st.integers(1, 6))
def test_slots_of_all_ranks_make_the_batch_each_place_once(replicate, shard, per_rank):
    layout = Layout(replicate=replicate, shard=shard)
    batch = per_rank * replicate * shard

    slots = [layout.slots(rank, batch) for rank in range(layout.num_ranks)]

    assert [slot for own in slots for slot in own] == list(range(batch))
    assert {len(own) for own in slots} == {per_rank}


def test_slots_of_the_second_of_two_by_two_ranks():
    # Batch 8 over 4 ranks: 2 places each; rank 1 has places 2 and 3.
    assert list(Layout(replicate=2, shard=2).slots(1, 8)) == [2, 3]


@pytest.mark.parametrize(
    ("settings", "site_ranks", "layout"),
    [
        (ParallelSettings(), 4, Layout(replicate=1, shard=4)),
        (ParallelSettings(replicate=2), 8, Layout(replicate=2, shard=4)),
        # What the campaign says goes before what the site has.
        (ParallelSettings(ranks=2, replicate=2), 8, Layout(replicate=2, shard=1)),
    ],
)
def test_a_layout_shares_the_ranks_of_each_copy_out(settings, site_ranks, layout):
    assert make_layout(settings, site_ranks, batch=8) == layout


def test_replicas_that_do_not_divide_the_ranks_of_the_site_are_refused():
    with pytest.raises(UserError) as error:
        make_layout(ParallelSettings(replicate=3), site_ranks=4, batch=12)

    assert str(error.value) == "parallel.replicate: must divide the number of ranks (4), got 3"


@pytest.mark.parametrize(
    ("batch", "ranks", "advice"),
    # 10 / 4 = 2.5 rounds to the even 2: 8; 11 / 4 = 2.75: 12; 1 is nearest to 0, but a batch has samples: 4.
    [(10, 4, 8), (11, 4, 12), (1, 4, 4)],
)
def test_a_batch_that_the_ranks_cannot_share_is_refused_with_one_they_can(batch, ranks, advice):
    with pytest.raises(UserError) as error:
        make_layout(ParallelSettings(), ranks, batch)

    assert str(error.value) == (
        f"train.batch: must be a multiple of the number of ranks ({ranks}), got {batch}; try {advice}"
    )


def test_a_layout_in_json_names_its_axes():
    assert Layout(replicate=2, shard=3).to_json() == {"replicate": 2, "shard": 3}
