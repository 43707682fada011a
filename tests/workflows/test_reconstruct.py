import pytest
import torch

from hyperslab.workflows.steps.reconstruct import Tally


def test_sums_over_batches_are_the_errors_of_all_of_it() -> None:
    generator = torch.Generator().manual_seed(2)
    found, truth = (torch.randn(37, 3, generator=generator) * 2 + 5 for _ in range(2))

    tally = Tally(3)
    for part in (slice(0, 1), slice(1, 20), slice(20, 37)):
        tally.add(found[part], truth[part])

    torch.testing.assert_close(tally.error, (found.double() - truth.double()).square().mean(0))
    torch.testing.assert_close(tally.spread, truth.double().var(0, correction=0))


def test_nothing_has_no_error() -> None:
    tally = Tally(1)
    tally.add(torch.empty(0, 1), torch.empty(0, 1))

    assert tally.error.isnan().all()
    assert tally.spread.isnan().all()


@pytest.mark.parametrize("value", [0.0, 0.1, 1e6])
def test_what_never_changes_has_no_spread(value: float) -> None:
    tally = Tally(1)
    tally.add(torch.zeros(7, 1), torch.full((7, 1), value))

    assert float(tally.spread) == pytest.approx(0, abs=1e-4 * max(1.0, value))
