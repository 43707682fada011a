"""Which layers each stage of a pipeline holds: pure arithmetic."""

from collections.abc import Sequence
from itertools import accumulate, pairwise


def split_layers(costs: Sequence[float], stages: int, before: float = 0.0, after: float = 0.0) -> list[range]:
    """Cut layers into stages, none empty, so that the most costly stage costs as little as it can.

    Of cuts that are as good, that with the longest first stages is taken: they hold what comes before their end anyway.

    Parameters
    ----------
    costs
        Of each layer.
    before, after
        What the first and the last stage do beside their layers.

    Raises
    ------
    ValueError
        When there are more stages than layers.
    """
    layers = len(costs)
    if not 1 <= stages <= layers:
        raise ValueError(f"stages: found {stages} for {layers} layers")
    sums = [0.0, *accumulate(costs)]

    def cost(start: int, stop: int) -> float:
        own = sums[stop] - sums[start]
        return own + (before if start == 0 else 0.0) + (after if stop == layers else 0.0)

    # best[stop] is the least that the most costly of so many stages can cost, which hold the layers before `stop`.
    best = [cost(0, stop) if stop else float("inf") for stop in range(layers + 1)]
    cuts: list[list[int]] = []
    for stage in range(1, stages):
        row, chosen = [float("inf")] * (layers + 1), [0] * (layers + 1)
        for stop in range(stage + 1, layers + 1):
            start = min(range(stop - 1, stage - 1, -1), key=lambda start: max(best[start], cost(start, stop)))
            row[stop], chosen[stop] = max(best[start], cost(start, stop)), start
        best = row
        cuts.append(chosen)
    bounds = [layers]
    for chosen in reversed(cuts):
        bounds.append(chosen[bounds[-1]])
    bounds.append(0)
    bounds.reverse()
    return [range(start, stop) for start, stop in pairwise(bounds)]
