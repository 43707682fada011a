import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from hyperslab.model.tokens import MAX_AUTOMATIC_TOKENS, PatchGrid, automatic_patch


def grid_of(rows: int, columns: int, patch: int, periodic: bool) -> PatchGrid:
    return PatchGrid(rows=rows, columns=columns, patch=patch, periodic=periodic)


def numbered_frame(rows: int, columns: int) -> torch.Tensor:
    """One frame of one channel whose value at (row, column) is 10 x row + column; shape (1, 1, 1, H, W)."""
    return (10.0 * torch.arange(rows)[:, None] + torch.arange(columns))[None, None, None]


@given(
    rows=st.integers(1, 13),
    columns=st.integers(1, 13),
    patch=st.integers(1, 5),
    channels=st.integers(1, 3),
    periodic=st.booleans(),
)
def test_frames_cut_into_patches_and_put_together_are_unchanged(rows, columns, patch, channels, periodic):
    # A patch that reaches more than once round the globe is the known failure below.
    assume(not periodic or -columns % patch <= columns)
    grid = grid_of(rows, columns, patch, periodic)
    frames = torch.randn(2, 1, channels, rows, columns, generator=torch.Generator().manual_seed(7))

    patches = grid.patchify(frames)

    assert patches.shape == (2, 1, grid.num_patches, channels * patch * patch)
    assert torch.equal(grid.unpatchify(patches[:, 0], channels), frames[:, 0])


def test_seven_rows_and_ten_columns_make_three_by_four_patches_of_three():
    # 7 rows need ceil(7/3) = 3 patches down, 10 columns ceil(10/3) = 4 across: 12 tokens.
    grid = grid_of(7, 10, 3, periodic=True)

    assert grid.shape == (3, 4)
    assert grid.num_patches == 12


def test_tokens_run_along_rows_and_their_values_along_channels_then_rows():
    # Rows 0-3, columns 0-3, patch 2. The second token covers rows 0-1 and columns 2-3, the third rows 2-3 and
    # columns 0-1. A second channel is the first plus 100, and its values follow those of the first.
    first = numbered_frame(4, 4)
    frames = torch.cat([first, first + 100], dim=2)

    patches = grid_of(4, 4, 2, periodic=False).patchify(frames)

    assert patches[0, 0, 1].tolist() == [2, 3, 12, 13, 102, 103, 112, 113]
    assert patches[0, 0, 2].tolist() == [20, 21, 30, 31, 120, 121, 130, 131]


def test_a_patch_over_the_eastern_edge_of_a_region_sees_the_edge_again():
    # Columns 0-2, patch 2: the second patch covers columns 2 and 3, and column 3 repeats column 2.
    patches = grid_of(2, 3, 2, periodic=False).patchify(numbered_frame(2, 3))

    assert patches[0, 0, 1].tolist() == [2, 2, 12, 12]


def test_a_patch_over_the_eastern_edge_of_the_globe_sees_what_lies_across_it():
    # Columns 0-2, patch 2: the column east of column 2 is column 0.
    patches = grid_of(2, 3, 2, periodic=True).patchify(numbered_frame(2, 3))

    assert patches[0, 0, 1].tolist() == [2, 0, 12, 10]


@pytest.mark.parametrize("periodic", [True, False])
def test_a_patch_over_the_southern_edge_sees_the_edge_again(periodic):
    # Rows 0-2, patch 2: the last patch covers rows 2 and 3, and row 3 repeats row 2: nothing lies across a
    # pole.
    patches = grid_of(3, 2, 2, periodic).patchify(numbered_frame(3, 2))

    assert patches[0, 0, 1].tolist() == [20, 21, 20, 21]


def test_a_patch_may_reach_round_the_globe_more_than_once():
    # Two columns under a patch of five: columns 0 1 0 1 0.
    patches = grid_of(1, 2, 5, periodic=True).patchify(numbered_frame(1, 2))

    assert patches[0, 0, 0, :5].tolist() == [0, 1, 0, 1, 0]


@given(rows=st.integers(1, 3000), columns=st.integers(1, 6000))
def test_the_automatic_patch_is_the_smallest_that_keeps_within_the_limit(rows, columns):
    patch = automatic_patch(rows, columns)

    def tokens(size: int) -> int:
        return grid_of(rows, columns, size, periodic=False).num_patches

    assert tokens(patch) <= MAX_AUTOMATIC_TOKENS
    assert patch == 1 or tokens(patch - 1) > MAX_AUTOMATIC_TOKENS


@pytest.mark.parametrize(
    ("rows", "columns", "patch"),
    [
        # 20 x 20 = 400 tokens are the limit; one column more is 420, and patch 2 gives 10 x 11.
        (20, 20, 1),
        (20, 21, 2),
        # The globe at 1 degree. Patch 12: 181/12 -> 16, 360/12 -> 30, 480 tokens, too many;
        # 13: 14 x 28 = 392.
        (181, 360, 13),
        # One row of 4001 points: 400 patches of 10 hold 4000, so 11.
        (1, 4001, 11),
    ],
)
def test_the_automatic_patch_of_known_grids(rows, columns, patch):
    assert automatic_patch(rows, columns) == patch
