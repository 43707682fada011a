import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hyperslab.model.tokens import MAX_AUTOMATIC_TOKENS, Patches, automatic_patch


def on_a_map(rows: int, columns: int, patch: int, *, periodic: bool) -> Patches:
    return Patches(sizes=(1, rows, columns), patch=(1, patch, patch), periodic=(False, False, periodic))


def numbered(*sizes: int) -> torch.Tensor:
    """Frames of one channel whose value at (time, place, ...) has these numbers as digits; shape (1, T, 1, *S)."""
    digits = torch.zeros(sizes)
    for axis, size in enumerate(sizes):
        own = torch.arange(float(size)).view(-1, *[1] * (len(sizes) - axis - 1))
        digits = digits + own * 10 ** (len(sizes) - axis - 1)
    return digits[None, :, None]


@st.composite
def any_patches(draw):
    axes = draw(st.integers(1, 3))
    sizes = tuple(draw(st.lists(st.integers(1, 7), min_size=axes + 1, max_size=axes + 1)))
    patch = tuple(draw(st.lists(st.integers(1, 4), min_size=axes + 1, max_size=axes + 1)))
    closed = draw(st.lists(st.booleans(), min_size=axes, max_size=axes))
    return Patches(sizes=sizes, patch=patch, periodic=(False, *closed))


@given(patches=any_patches(), channels=st.integers(1, 3))
def test_frames_cut_into_patches_and_put_together_are_unchanged(patches, channels):
    time, *space = patches.sizes
    frames = torch.randn(2, time, channels, *space, generator=torch.Generator().manual_seed(7))

    cut = patches.cut(frames)

    count = math.prod(-(-size // side) for size, side in zip(patches.sizes, patches.patch, strict=True))
    assert cut.shape == (2, count, channels * math.prod(patches.patch))
    assert torch.equal(patches.join(cut), frames)


@given(patches=any_patches(), channels=st.integers(1, 2))
def test_patches_that_fit_are_unchanged_when_put_together_and_cut(patches, channels):
    sizes = tuple(count * side for count, side in zip(patches.shape, patches.patch, strict=True))
    fitting = Patches(sizes=sizes, patch=patches.patch, periodic=patches.periodic)
    values = torch.randn(
        2, math.prod(fitting.shape), channels * math.prod(sizes) // math.prod(fitting.shape), dtype=torch.float64
    )

    assert torch.equal(fitting.cut(fitting.join(values)), values)


@given(patches=any_patches())
def test_values_of_a_patch_are_those_of_its_places(patches):
    # Place by place: over the edge of an axis that closes its other end, else the edge again.
    frames = torch.randn(1, patches.sizes[0], 1, *patches.sizes[1:], generator=torch.Generator().manual_seed(8))
    cut = patches.cut(frames).view(*patches.shape, *patches.patch)

    for number in range(0, cut.numel(), 1 + cut.numel() // 40):
        index = torch.unravel_index(torch.tensor(number), cut.shape)
        half = len(patches.sizes)
        place = []
        for axis, (size, side) in enumerate(zip(patches.sizes, patches.patch, strict=True)):
            own = int(index[axis]) * side + int(index[half + axis])
            place.append(own % size if patches.periodic[axis] else min(own, size - 1))
        assert cut[index] == frames[0, :, 0][tuple(place)]


def test_seven_rows_and_ten_columns_make_three_by_four_patches_of_three():
    # 7 rows need ceil(7/3) = 3 patches down, 10 columns ceil(10/3) = 4 across: 12 tokens.
    patches = on_a_map(7, 10, 3, periodic=True)

    assert patches.shape == (1, 3, 4)
    assert patches.cut(torch.zeros(1, 1, 1, 7, 10)).shape == (1, 12, 9)


def test_tokens_run_along_rows_and_their_values_along_channels_then_rows():
    # Rows 0-3, columns 0-3, patch 2. The second token covers rows 0-1 and columns 2-3, the third rows 2-3 and
    # columns 0-1. A second channel is the first plus 100, and its values follow those of the first.
    first = numbered(1, 4, 4)
    cut = on_a_map(4, 4, 2, periodic=False).cut(torch.cat([first, first + 100], dim=2))

    assert cut[0, 1].tolist() == [2, 3, 12, 13, 102, 103, 112, 113]
    assert cut[0, 2].tolist() == [20, 21, 30, 31, 120, 121, 130, 131]


def test_tokens_run_through_space_before_time_and_their_values_too():
    # Four frames of four places, patches of 2 x 2: tokens are frames 0-1 places 0-1, then places 2-3; then
    # frames 2-3. Digits are time and place.
    patches = Patches(sizes=(4, 4), patch=(2, 2), periodic=(False, False))

    assert patches.cut(numbered(4, 4))[0].tolist() == [
        [0, 1, 10, 11],
        [2, 3, 12, 13],
        [20, 21, 30, 31],
        [22, 23, 32, 33],
    ]


def test_tokens_of_a_volume_run_along_its_last_axis_first():
    # One frame of 2 x 2 x 4 places, patches of 1 x 2 x 2: digits are level, row and column.
    patches = Patches(sizes=(1, 2, 2, 4), patch=(1, 1, 2, 2), periodic=(False,) * 4)

    assert patches.cut(numbered(1, 2, 2, 4))[0].tolist() == [
        [0, 1, 10, 11],
        [2, 3, 12, 13],
        [100, 101, 110, 111],
        [102, 103, 112, 113],
    ]


def test_a_patch_over_the_eastern_edge_of_a_region_sees_the_edge_again():
    # Columns 0-2, patch 2: the second patch covers columns 2 and 3, and column 3 repeats column 2.
    cut = on_a_map(2, 3, 2, periodic=False).cut(numbered(1, 2, 3))

    assert cut[0, 1].tolist() == [2, 2, 12, 12]


def test_a_patch_over_the_eastern_edge_of_the_globe_sees_what_lies_across_it():
    # Columns 0-2, patch 2: the column east of column 2 is column 0.
    cut = on_a_map(2, 3, 2, periodic=True).cut(numbered(1, 2, 3))

    assert cut[0, 1].tolist() == [2, 0, 12, 10]


@pytest.mark.parametrize("periodic", [True, False])
def test_a_patch_over_the_southern_edge_sees_the_edge_again(periodic):
    # Rows 0-2, patch 2: the last patch covers rows 2 and 3, and row 3 repeats row 2: nothing lies across a
    # pole.
    cut = on_a_map(3, 2, 2, periodic=periodic).cut(numbered(1, 3, 2))

    assert cut[0, 1].tolist() == [20, 21, 20, 21]


def test_a_patch_may_reach_round_the_globe_more_than_once():
    # Two columns under a patch of five: columns 0 1 0 1 0.
    cut = on_a_map(1, 2, 5, periodic=True).cut(numbered(1, 1, 2))

    assert cut[0, 0, :5].tolist() == [0, 1, 0, 1, 0]


def test_marks_are_cut_as_values_are():
    cut = on_a_map(2, 3, 2, periodic=False).cut(numbered(1, 2, 3) > 2)

    assert cut.dtype == torch.bool
    assert cut[0].tolist() == [[False, False, True, True], [False, False, True, True]]


def test_centres_are_the_means_of_own_places_along_each_axis():
    # Rows 10, 20, 60 in patches of 2: 15, and 60 by itself.
    patches = Patches(sizes=(1, 3, 2), patch=(1, 2, 1), periodic=(False, False, True))

    assert patches.centres(1, torch.tensor([10.0, 20.0, 60.0])).tolist() == [15.0, 60.0]
    assert patches.centres(2, torch.tensor([0.0, 180.0])).tolist() == [0.0, 180.0]


@given(sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=3))
def test_the_automatic_patch_is_the_smallest_that_keeps_within_the_limit(sizes):
    patch = automatic_patch(sizes)

    def tokens(side: int) -> int:
        axes = len(sizes)
        return math.prod(Patches(sizes=tuple(sizes), patch=(side,) * axes, periodic=(False,) * axes).shape)

    assert tokens(patch) <= MAX_AUTOMATIC_TOKENS
    assert patch == 1 or tokens(patch - 1) > MAX_AUTOMATIC_TOKENS


@pytest.mark.parametrize(
    ("sizes", "patch"),
    [
        # 20 x 20 = 400 tokens are the limit; one column more is 420, and patch 2 gives 10 x 11.
        ((20, 20), 1),
        ((20, 21), 2),
        # The globe at 1 degree. Patch 12: 181/12 -> 16, 360/12 -> 30, 480 tokens, too many;
        # 13: 14 x 28 = 392.
        ((181, 360), 13),
        # One row of 4001 points: 400 patches of 10 hold 4000, so 11.
        ((1, 4001), 11),
        ((4001,), 11),
        # 400 parcels are as many tokens.
        ((400,), 1),
        # A brain of 64 x 64 x 36. Patch 7: 10 x 10 x 6 = 600, too many; 8: 8 x 8 x 5 = 320.
        ((64, 64, 36), 8),
    ],
)
def test_the_automatic_patch_of_known_grids(sizes, patch):
    assert automatic_patch(sizes) == patch
