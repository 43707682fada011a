import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperslab.errors import UserError
from hyperslab.model.config import ModelSettings
from hyperslab.parallel.config import ParallelSettings
from hyperslab.parallel.layout import AXES, Layout, check_model, make_layout

LAYOUTS = st.builds(Layout, **{name: st.integers(1, 3) for name in AXES})


@given(layout=LAYOUTS, each=st.integers(1, 4))
def test_groups_of_ranks_share_the_batch_out_and_all_of_a_group_have_the_same_places(layout, each):
    batch = each * layout.data

    by_group: dict[int, set[range]] = {}
    for rank in range(layout.num_ranks):
        by_group.setdefault(layout.data_rank(rank), set()).add(layout.slots(rank, batch))

    assert all(len(slots) == 1 for slots in by_group.values())
    assert [place for group in sorted(by_group) for slots in by_group[group] for place in slots] == list(range(batch))


@given(layout=LAYOUTS)
def test_every_rank_has_a_place_of_its_own_along_the_axes(layout):
    places = [tuple(layout.coordinates(rank).values()) for rank in range(layout.num_ranks)]

    # Numbered along the innermost axis first: in ascending order, like digits.
    assert places == sorted(set(places))
    assert len(places) == math.prod(layout.sizes)
    assert all(0 <= place < size for at in places for place, size in zip(at, layout.sizes, strict=True))


@given(layout=LAYOUTS, tokens=st.integers(0, 50))
def test_ranks_that_share_samples_hold_all_tokens_once_each(layout, tokens):
    teams: dict[tuple[int, int], list[int]] = {}
    for rank in range(layout.num_ranks):
        run = layout.part(rank).run(tokens)
        at = layout.coordinates(rank)
        teams.setdefault((at["pipeline"], layout.data_rank(rank)), []).extend(range(run.start, run.stop))

    assert all(held == list(range(tokens)) for held in teams.values())


def test_slots_of_the_second_of_two_by_two_ranks():
    # Batch 8 over 4 ranks: 2 places each; rank 1 has places 2 and 3. Where two share samples there are 4 each.
    assert list(Layout(replicate=2, shard=2).slots(1, 8)) == [2, 3]
    assert list(Layout(shard=2, domain=2).slots(1, 8)) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("settings", "site_ranks", "layout"),
    [
        (ParallelSettings(), 4, Layout(shard=4)),
        (ParallelSettings(replicate=2), 8, Layout(replicate=2, shard=4)),
        (ParallelSettings(domain=2, tensor=2), 8, Layout(shard=2, domain=2, tensor=2)),
        # As many pieces as stages, unless more are asked for.
        (ParallelSettings(pipeline=2), 4, Layout(pipeline=2, shard=2, pieces=2)),
        (ParallelSettings(pipeline=2, pieces=4), 4, Layout(pipeline=2, shard=2, pieces=4)),
        # What the campaign says goes before what the site has.
        (ParallelSettings(ranks=2, replicate=2), 8, Layout(replicate=2)),
    ],
)
def test_the_ranks_that_other_axes_leave_share_parameters_out(settings, site_ranks, layout):
    assert make_layout(settings, site_ranks, batch=8) == layout


def test_axes_that_do_not_divide_the_ranks_are_refused_with_the_whole_product():
    with pytest.raises(UserError) as error:
        make_layout(ParallelSettings(replicate=3, tensor=2), site_ranks=4, batch=12)

    assert str(error.value) == (
        "parallel: pipeline 1 x replicate 3 x domain 1 x tensor 2 = 6 must divide the number of ranks (4); change one "
        "of them, or parallel.ranks"
    )


@pytest.mark.parametrize(
    ("batch", "ranks", "advice"),
    # 10 / 4 = 2.5 rounds to the even 2: 8; 11 / 4 = 2.75: 12; 1 is nearest to 0, but a batch has samples: 4.
    [(10, 4, 8), (11, 4, 12), (1, 4, 4)],
)
def test_a_batch_that_the_ranks_cannot_share_is_refused_with_one_they_can(batch, ranks, advice):
    with pytest.raises(UserError) as error:
        make_layout(ParallelSettings(), ranks, batch)

    assert str(error.value) == (
        f"train.batch: must be a multiple of replicate 1 x shard {ranks} x pieces 1 = {ranks}, got {batch}; try "
        f"{advice}"
    )


@given(layout=LAYOUTS, pieces=st.integers(1, 3), each=st.integers(1, 3))
def test_pieces_are_the_places_of_a_rank_in_their_order(layout, pieces, each):
    layout = replace(layout, pieces=pieces)
    batch = layout.data * pieces * each

    for rank in range(layout.num_ranks):
        own = layout.pieces_of(rank, batch)
        assert [len(piece) for piece in own] == [each] * pieces
        assert [place for piece in own for place in piece] == list(layout.slots(rank, batch))


def test_fewer_pieces_than_stages_are_refused():
    with pytest.raises(UserError, match=r"parallel.pieces: found 2 for a pipeline of 4 stages"):
        make_layout(ParallelSettings(pipeline=4, pieces=2), 4, 8)


def test_a_pipeline_rolls_no_forecasts_out():
    with pytest.raises(UserError, match=r"parallel.pipeline: found 2 with objective.rollout 3"):
        check_model(Layout(pipeline=2), ModelSettings(width=32, depth=2, heads=4), rollout=3)


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        (Layout(domain=3), r"parallel: domain 3 x tensor 1 = 3 must divide model.heads \(4\)"),
        (Layout(domain=4, tensor=2), r"parallel: domain 4 x tensor 2 = 8 must divide model.heads \(4\)"),
        (Layout(pipeline=3), r"parallel.pipeline: found 3 stages for model.depth 2; give at most that"),
    ],
)
def test_a_layout_that_a_model_cannot_have_is_refused_with_the_arithmetic(layout, said):
    with pytest.raises(UserError, match=said):
        check_model(layout, ModelSettings(width=32, depth=2, heads=4))


def test_a_layout_that_a_model_can_have_is_accepted():
    check_model(Layout(pipeline=2, domain=2, tensor=2), ModelSettings(width=32, depth=2, heads=4))


def test_a_layout_in_json_names_its_axes():
    assert Layout(replicate=2, shard=3).to_json() == {
        "pipeline": 1, "replicate": 2, "shard": 3, "domain": 1, "tensor": 1, "pieces": 1
    }  # fmt: skip


def test_a_layout_in_words_names_what_is_more_than_one():
    assert str(Layout(replicate=2, tensor=4)) == "2 replicate x 4 tensor"
    assert str(Layout()) == "1 rank"
