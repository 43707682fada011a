"""Which sample comes at which step: a pure function of the seed and the sample's number."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from hyperslab.data.frames import Ints, Windows
from hyperslab.errors import UserError

ROUNDS = 6
PERIOD = 4096
"""Steps over which a mixture of stores keeps its shares exactly."""

LARGEST_WEIGHT = 1e9

_Words = npt.NDArray[np.uint64]


def samples_at(seed: int, indices: Ints, num_windows: int) -> Ints:
    """Windows drawn as the samples of these numbers of a run, shape (sample,).

    Each epoch of `num_windows` samples is a permutation of all windows, another one in every epoch. The permutation
    is a Feistel network over the smallest even number of bits that holds `num_windows`, walked until it falls
    inside (Black and Rogaway 2002, "Ciphers with arbitrary finite domains", method 2): neither time nor memory
    grows with the number of windows, and no rank needs to know what another one draws.

    Parameters
    ----------
    seed
        Seed of the run.
    indices
        Numbers of the samples, from 0: step x global batch + slot; shape (sample,).
    num_windows
        Windows to draw from, at least 1.
    """
    epochs, positions = np.divmod(np.asarray(indices, np.int64), num_windows)
    half_bits = max(1, ((num_windows - 1).bit_length() + 1) // 2)
    base = _mix(_mix(np.asarray(seed & 0xFFFF_FFFF_FFFF_FFFF, np.uint64)) ^ epochs.astype(np.uint64))
    keys = [_mix(base ^ np.uint64(number)) for number in range(ROUNDS)]
    drawn = _feistel(positions.astype(np.uint64), half_bits, keys)
    while (outside := drawn >= num_windows).any():
        drawn[outside] = _feistel(drawn[outside], half_bits, [key[outside] for key in keys])
    return drawn.astype(np.int64)


def sample_at(seed: int, index: int, num_windows: int) -> int:
    """Window drawn as sample number `index` of a run, as `samples_at` says."""
    return int(samples_at(seed, np.asarray([index]), num_windows)[0])


@lru_cache(maxsize=2)
def _period(seed: int, quotas: tuple[int, ...], period: int) -> tuple[Ints, Ints]:
    """The store of each step of a period, and how many steps of the period before it draw from the same one."""
    places = samples_at(seed, np.arange(period * PERIOD, (period + 1) * PERIOD), PERIOD)
    stores = np.searchsorted(np.cumsum(quotas), places, side="right")
    turns = np.empty(PERIOD, np.int64)
    for store, quota in enumerate(quotas):
        turns[stores == store] = np.arange(quota)
    return stores.astype(np.int64), turns


def _feistel(values: _Words, half_bits: int, keys: Sequence[_Words]) -> _Words:
    mask, shift = np.uint64((1 << half_bits) - 1), np.uint64(half_bits)
    left, right = values >> shift, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return left << shift | right


def _mix(values: _Words) -> _Words:
    """A 64-bit finaliser (SplitMix64: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators")."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is meant
        values = values + np.uint64(0x9E37_79B9_7F4A_7C15)
        values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58_476D_1CE4_E5B9)
        values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D0_49BB_1331_11EB)
    return values ^ values >> np.uint64(31)


def check_weights(weights: Sequence[float]) -> None:
    """Refuse weights of stores that give one of them no step.

    Raises
    ------
    UserError
        When one is not positive, or too small or large beside the others.
    """
    for weight in weights:
        if not 0 < weight < LARGEST_WEIGHT:
            raise UserError(f"weights: found {weight:g}; each must be a number between 0 and {LARGEST_WEIGHT:g}")
    for weight, steps in zip(weights, _quotas(weights), strict=True):
        if steps == 0:
            raise UserError(
                f"weights: found {weight:g} of {sum(weights):g}; each store needs at least one step in "
                f"{PERIOD}: give it a larger weight, or leave it out"
            )


def _quotas(weights: Sequence[float]) -> list[int]:
    """Steps of a period that go to each store."""
    total = sum(weights)
    bounds = [round(PERIOD * share / total) for share in accumulate(weights, initial=0.0)]
    return [stop - start for start, stop in pairwise(bounds)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Which windows of which store every step of a run draws, whatever the ranks, workers and interruptions.

    All samples of a step come from one store. Of `PERIOD` steps each store gets its share of the weights, exactly;
    every store goes through its own epochs.
    """

    seed: int
    batch: int
    """Samples in a global batch: those of all ranks together."""
    windows: tuple[Windows, ...]
    """The windows of each store that is drawn from."""
    weights: tuple[float, ...] = (1.0,)
    """Share of the steps that each store gets, as a proportion to the others."""

    def __post_init__(self) -> None:
        """Refuse what no order can be made of.

        Raises
        ------
        UserError
            When a weight is missing, is not positive, or gives a store no step in a period.
        """
        if self.batch < 1 or not all(len(windows) for windows in self.windows):
            sizes = [len(windows) for windows in self.windows]
            raise UserError(f"order: found batches of {self.batch} from stores of {sizes} windows; none may be empty")
        if len(self.weights) != len(self.windows):
            raise UserError(f"weights: found {len(self.weights)} for {len(self.windows)} stores; give one for each")
        check_weights(self.weights)

    def turn(self, step: int) -> tuple[int, int]:
        """The store that a step draws from, and how many steps before it have; in a period the stores come shuffled."""
        if len(self.windows) == 1:
            return 0, step
        quotas, (period, place) = _quotas(self.weights), divmod(step, PERIOD)
        stores, turns = _period(self.seed, tuple(quotas), period)
        store = int(stores[place])
        return store, period * quotas[store] + int(turns[place])

    def draw(self, step: int, slots: range) -> tuple[int, Ints]:
        """The store that a step draws from, and its windows in these places of the global batch; shape (slot,)."""
        store, turn = self.turn(step)
        indices = turn * self.batch + np.asarray(slots, np.int64)
        # Stores of equal size are drawn from in different orders; the first one's is that of a run by itself.
        return store, samples_at(self.seed + store, indices, len(self.windows[store]))

    def check_windows(self, read: Sequence[Windows]) -> None:
        """Refuse to draw for those who read other windows: numbers of windows would mean other samples to them.

        Parameters
        ----------
        read
            The windows that are read of each store.

        Raises
        ------
        ValueError
            When they are not those that are drawn from.
        """
        if len(read) != len(self.windows):
            raise ValueError(
                f"order: draws from {len(self.windows)} store(s), found windows of {len(read)}; "
                "give a loader for each to `mixed`"
            )
        for number, (drawn, found) in enumerate(zip(self.windows, read, strict=True)):
            if _content(drawn) != _content(found):
                raise ValueError(
                    f"order: draws from {len(drawn)} windows of {drawn.span} frames of store {number}, found "
                    f"{len(found)} other ones of {found.span}; make the order of the loader's windows"
                )

    def digest(self, step: int) -> str:
        """Fingerprint of all samples before a step: equal digests mean that two runs drew, and will draw, the same.

        The order is a pure function, so its arguments stand for it: the seed, the batch, the stores' shares, and all
        that windows hold, the sampling of those that `windows_of` finds included. The first and the latest draws are
        hashed as well, so that a changed function is noticed too. What the frames hold is the store's own digest's.
        """
        digest = hashlib.sha256(f"{self.seed} {self.batch} {_quotas(self.weights)} {step}".encode())
        for windows in self.windows:
            digest.update(_content(windows))
        few = max(1, 64 // self.batch)
        for drawn in [*range(min(step, few)), *range(max(0, step - few), step)]:
            store, numbers = self.draw(drawn, range(min(self.batch, 64)))
            digest.update(store.to_bytes(8, "little") + numbers.tobytes())
        return digest.hexdigest()


def _content(windows: Windows) -> bytes:
    """All that windows hold, what a subclass adds included."""
    held = [getattr(windows, field.name) for field in fields(windows)]
    return b"".join(value.tobytes() if isinstance(value, np.ndarray) else f" {value} ".encode() for value in held)
