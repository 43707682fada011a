"""What each kind of attention costs: seconds and memory, beside PyTorch's own attention on the same tokens.

    python benchmarks/attention.py [--tokens 1024,2048,4096,8192,16384,32768] [--heads 4] [--head-width 32]
                                   [--pairs 5] [--kinds window,linear] [--memory]

Dense attention is `F.scaled_dot_product_attention`, on a CPU its flash kernel. Each measurement is a forward and a
backward pass of one sample in single precision on one core. The tokens are 8 frames of a grid whose columns close on
themselves. Growth is the exponent of a power of the number of tokens, fitted by least squares of logarithms.

- Seconds are those of the processor; dense and sparse take turns, and the median of their ratios is printed. There
  are fewer pairs above 8,192 tokens, where a dense pass takes seconds. All of it takes some twenty minutes.
- Memory (`--memory`, instead of seconds) is the peak of a fresh process, less what it held once the inputs were made
  and other tokens had been attended to. It needs Linux's /proc and the GNU C library.
"""

import argparse
import ctypes
import math
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from hyperslab.model.attention.block_sparse import BlockSparse
from hyperslab.model.attention.grouped import Axial, Window
from hyperslab.model.attention.linear import Linear
from hyperslab.model.attention.mixer import Dense, Kind, Mixer
from hyperslab.model.attention.nystrom import Nystrom
from hyperslab.model.lattice import BLOCK, Lattice, make_lattice

FRAMES = 8
FULL_PAIRS_TOKENS = 8192
SHORTEST_SECONDS = 0.1
FITTED_FROM_TOKENS = 2048
"""Below that, what a call costs by itself shows in how time grows."""
BOUND_FROM_TOKENS = 4096
WARM_TOKENS = 1024
"""Enough for every kind to take the way that it takes with many tokens: PyTorch loads parts of itself on the way."""
GROWTH_BOUND = 1.15
MEMORY_BOUND = 3.0

Growth = Callable[[int], float]
Passes = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kind of attention, and what is expected of it."""

    make: Kind
    """Makes the mixer."""
    work: Growth = float
    """Pairs of tokens, or as much arithmetic, up to a factor."""
    density: float | None = None
    """Share of the blocks that is seen, where that bounds the time."""
    is_bounded: bool = False
    """Whether growth is."""


def bound(density: float) -> float:
    """Share of the time of dense attention that attention to a share of the blocks may take."""
    return 1.6 * density + 0.03


def squared(tokens: int) -> float:
    """All pairs."""
    return tokens**2


def axial(tokens: int) -> float:
    """Each token's own place at all times, then all places at its time."""
    return tokens * (FRAMES + tokens / FRAMES)


def cases(head_width: int) -> dict[str, Case]:
    """All kinds that are measured, the dense one first."""
    found = {"dense": Case(make=Dense, work=squared)}
    for part in (16, 8, 4):
        make = partial(BlockSparse, BLOCK, 1 / part, "static", lattices={})
        found[f"block_sparse 1/{part}"] = Case(make=make, work=squared, density=1 / part)
    make = partial(BlockSparse, BLOCK, 1.0, "static", lattices={}, num_seen=8)
    found["block_sparse 8 blocks"] = Case(make=make, is_bounded=True)
    for size in (64, 256):
        for shifted in (False, True):
            window = Case(make=partial(Window, size, shifted=shifted), is_bounded=True)
            found[f"window {size}{' shifted' * shifted}"] = window
    found["axial"] = Case(make=Axial, work=axial)
    found["linear 128 features"] = Case(make=partial(Linear, head_width, 128, learned=False), is_bounded=True)
    found["nystrom 64 landmarks"] = Case(make=partial(Nystrom, 64))
    return found


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", default="1024,2048,4096,8192,16384,32768", help="numbers of tokens")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--head-width", type=int, default=32, help="features of a head")
    parser.add_argument("--pairs", type=int, default=5, help="turns of dense and sparse")
    parser.add_argument("--kinds", default="", help="beginnings of the names of kinds; all where absent")
    parser.add_argument("--memory", action="store_true", help="measure memory instead of seconds")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.child:
        print(peak_bytes(chosen.child, chosen))
        return
    counts = [int(word) for word in chosen.tokens.split(",")]
    beginnings = ("dense", *chosen.kinds.split(",")) if chosen.kinds else ("",)
    kinds = {name: case for name, case in cases(chosen.head_width).items() if name.startswith(beginnings)}
    (memory if chosen.memory else seconds)(kinds, counts, chosen)


def lattice_of(tokens: int) -> Lattice:
    """8 frames of so many tokens together, as wide as high or twice as wide."""
    rows = 2 ** (int(math.log2(tokens // FRAMES)) // 2)
    columns = tokens // FRAMES // rows
    if FRAMES * rows * columns != tokens:
        raise ValueError(f"--tokens: must be powers of two from 16, got {tokens}")
    return make_lattice((FRAMES, rows, columns), (False, False, True))


class Inputs:
    """Queries, keys and values of some tokens, and the gradient of what is mixed of them."""

    def __init__(self, tokens: int, chosen: argparse.Namespace) -> None:
        torch.manual_seed(0)
        shape = (1, chosen.heads, tokens, chosen.head_width)
        self.lattice = lattice_of(tokens)
        self.learned = [torch.randn(shape, requires_grad=True) for _ in range(3)]
        self.gradient = torch.randn(shape)

    def passes(self, mixer: Mixer) -> Passes:
        """Both passes of a mixer, its plan made."""
        plan = mixer.plan(self.lattice, torch.device("cpu"))

        def both() -> object:
            query, key, value = self.learned
            return torch.autograd.grad(mixer(query, key, value, None, plan), self.learned, self.gradient)

        return both


def seconds(kinds: dict[str, Case], counts: list[int], chosen: argparse.Namespace) -> None:
    """Print what each kind takes, then how that grows."""
    taken: dict[str, dict[int, float]] = {name: {} for name in kinds}
    for tokens in counts:
        inputs = Inputs(tokens, chosen)
        dense, all_dense = inputs.passes(Dense()), []
        print(f"\n{tokens} tokens{'':18}{'ms':>9}{'of dense':>10}{'at most':>9}")
        for name, case in kinds.items():
            if name == "dense":
                continue
            own, theirs = take_turns(inputs.passes(case.make()), dense, pairs_at(tokens, chosen.pairs))
            all_dense += theirs
            taken[name][tokens] = statistics.median(own)
            ratio = statistics.median(one / other for one, other in zip(own, theirs, strict=True))
            rule = ""
            if case.density and tokens >= BOUND_FROM_TOKENS:
                rule = f"{bound(case.density):9.3f}  {verdict(ratio, bound(case.density))}"
            print(f"  {name:24}{1e3 * taken[name][tokens]:14.1f}{ratio:10.3f}{rule}", flush=True)
        taken["dense"][tokens] = statistics.median(all_dense)
        print(f"  {'dense':24}{1e3 * taken['dense'][tokens]:14.1f}")
    fitted = [tokens for tokens in counts if tokens >= FITTED_FROM_TOKENS]
    if len(fitted) > 1:
        title = f"growth from {fitted[0]} to {fitted[-1]} tokens"
        print(f"\n{title:32}{'exponent':>9}{'of its arithmetic':>19}{'at most':>9}")
        for name, case in kinds.items():
            power, expected = exponent(taken[name], fitted), exponent({n: case.work(n) for n in fitted}, fitted)
            rule = f"{GROWTH_BOUND:9.2f}  {verdict(power, GROWTH_BOUND)}" if case.is_bounded else ""
            print(f"  {name:24}{power:15.2f}{expected:19.2f}{rule}")


def pairs_at(tokens: int, pairs: int) -> int:
    """Fewer for so many tokens, but two if that many are asked for."""
    return min(pairs, max(2, pairs * FULL_PAIRS_TOKENS // tokens))


def take_turns(one: Passes, other: Passes, pairs: int) -> tuple[list[float], list[float]]:
    """Seconds of each, in turn."""
    one()  # memory that the second call finds is warm
    turns = [(processor_seconds(other), processor_seconds(one)) for _ in range(pairs)]
    return [own for _, own in turns], [theirs for theirs, _ in turns]


def processor_seconds(work: Passes) -> float:
    """Mean of as many runs as fill a moment."""
    began, count = time.process_time(), 0
    while True:
        work()
        count += 1
        taken = time.process_time() - began
        if taken > SHORTEST_SECONDS:
            return taken / count


def exponent(values: dict[int, float], counts: list[int]) -> float:
    """Power of the number of tokens by which values grow."""
    logs = np.log([values[tokens] for tokens in counts])
    return float(np.polyfit(np.log(counts), logs, 1)[0])


def verdict(value: float, at_most: float) -> str:
    """Whether a rule holds."""
    return "holds" if value <= at_most else "does not hold"


def memory(kinds: dict[str, Case], counts: list[int], chosen: argparse.Namespace) -> None:
    """Print the peak of each kind in MiB, beside that of dense attention, and how it grows."""
    print(f"{'MiB at the peak (of dense)':26}" + "".join(f"{tokens:>14}" for tokens in counts) + f"{'growth':>8}")
    fitted = [tokens for tokens in counts if tokens >= FITTED_FROM_TOKENS]
    dense: dict[int, float] = {}
    for name in kinds:
        print(f"  {name:24}", end="", flush=True)
        peaks: dict[int, float] = {}
        for tokens in counts:
            command = [sys.executable, __file__, "--child", name, "--tokens", str(tokens)]
            command += ["--heads", str(chosen.heads), "--head-width", str(chosen.head_width)]
            peaks[tokens] = float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
            ratio = "" if name == "dense" else f"({peaks[tokens] / dense[tokens]:.2f}x)"
            print(f"{peaks[tokens] / 2**20:7.1f}{ratio:>7}", end="", flush=True)
        growth = f"{exponent(peaks, fitted):8.2f}" if len(fitted) > 1 else ""
        worst = max((peaks[tokens] / dense[tokens] for tokens in counts if dense), default=None)
        print(f"{growth}  {'' if worst is None else verdict(worst, MEMORY_BOUND)}".rstrip())
        dense = dense or peaks
    print(f"At most {MEMORY_BOUND:.0f}x is asked for. Growth is the exponent from {FITTED_FROM_TOKENS} tokens on.")


def peak_bytes(name: str, chosen: argparse.Namespace) -> int:
    """Most that this process holds during both passes, beyond the inputs."""
    mixer = cases(chosen.head_width)[name].make()
    Inputs(WARM_TOKENS, chosen).passes(mixer)()
    work = Inputs(int(chosen.tokens), chosen).passes(mixer)
    ctypes.CDLL(None).malloc_trim(0)  # what was freed counts as held, and would be used again
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew: proc_pid_clear_refs(5)
    before = resident("VmRSS")
    work()
    return resident("VmHWM") - before


def resident(field: str) -> int:
    """Bytes that this process holds, or held at its peak."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


if __name__ == "__main__":
    main()
