"""Which sample comes at which step: a pure function of the seed and the sample's number."""

import hashlib

from hyperslab.data.frames import Windows

ROUNDS = 6
_MASK = 0xFFFF_FFFF_FFFF_FFFF


def sample_at(seed: int, index: int, num_windows: int) -> int:
    """Window drawn as sample number `index` of a run.

    Each epoch of `num_windows` samples is a permutation of all windows, another one in every epoch. The permutation
    is a Feistel network over the smallest even number of bits that holds `num_windows`, walked until it falls
    inside (Black and Rogaway 2002, "Ciphers with arbitrary finite domains", method 2): neither time nor memory
    grows with the number of windows, and no rank needs to know what another one draws.

    Parameters
    ----------
    seed
        Seed of the run.
    index
        Number of the sample, from 0: step x global batch + slot.
    num_windows
        Windows to draw from, at least 1.
    """
    epoch, position = divmod(index, num_windows)
    half_bits = max(1, ((num_windows - 1).bit_length() + 1) // 2)
    keys = [_mix(_mix(_mix(seed & _MASK) ^ epoch) ^ number) for number in range(ROUNDS)]
    position = _feistel(position, half_bits, keys)
    while position >= num_windows:
        position = _feistel(position, half_bits, keys)
    return position


def _feistel(value: int, half_bits: int, keys: list[int]) -> int:
    mask = (1 << half_bits) - 1
    left, right = value >> half_bits, value & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return left << half_bits | right


def _mix(value: int) -> int:
    """A 64-bit finaliser (SplitMix64: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators")."""
    value = (value + 0x9E37_79B9_7F4A_7C15) & _MASK
    value = ((value ^ value >> 30) * 0xBF58_476D_1CE4_E5B9) & _MASK
    value = ((value ^ value >> 27) * 0x94D0_49BB_1331_11EB) & _MASK
    return value ^ value >> 31


def order_digest(seed: int, windows: Windows, samples: int) -> str:
    """Fingerprint of the order up to `samples`: equal digests mean that two runs drew, and will draw, the same.

    The order is a pure function, so its arguments stand for it; the first and the latest draws are hashed as well,
    so that a changed function is noticed too.
    """
    digest = hashlib.sha256(f"{seed} {windows.span} {len(windows)} {samples}".encode())
    digest.update(windows.starts.tobytes() + windows.offsets.tobytes())
    for index in [*range(min(samples, 64)), *range(max(0, samples - 64), samples)]:
        digest.update(sample_at(seed, index, len(windows)).to_bytes(8, "little"))
    return digest.hexdigest()
