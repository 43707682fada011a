"""Memory for batches that is used again as soon as nothing refers to a batch any more."""

import math
import threading
import weakref

import numpy as np
import numpy.typing as npt
import torch


class Buffers:
    """Gives tensors whose memory comes back when the last tensor over it is gone.

    Fresh memory costs as much time as decompressing into it does: the system clears it page by page.
    """

    def __init__(self, keep_bytes: int, *, pin: bool = False) -> None:
        self._keep_bytes, self._pin = keep_bytes, pin
        self._free: dict[int, list[npt.NDArray[np.float32]]] = {}
        # A lease may end in the middle of `empty`: garbage is collected anywhere.
        self._lock = threading.RLock()

    def empty(self, shape: tuple[int, ...]) -> torch.Tensor:
        """An uninitialised tensor of float32; page-locked ones come from PyTorch, which uses them again itself."""
        if self._pin:
            return torch.empty(shape, pin_memory=True)
        size = math.prod(shape)
        with self._lock:
            kept = self._free.get(size)
            memory = kept.pop() if kept else np.empty(size, np.float32)
        lease = memory[:]  # which the tensor, and every view of it, holds on to
        weakref.finalize(lease, self._give_back, memory).atexit = False
        return torch.from_numpy(lease).view(shape)

    def _give_back(self, memory: npt.NDArray[np.float32]) -> None:
        with self._lock:
            held = sum(4 * size * len(kept) for size, kept in self._free.items())
            if held + memory.nbytes > self._keep_bytes:
                self._free.clear()  # of sizes that are asked for no more
            self._free.setdefault(memory.size, []).append(memory)


class Later:
    """A tensor of `Buffers` that takes memory once somebody needs it."""

    def __init__(self, buffers: Buffers, shape: tuple[int, ...]) -> None:
        self._buffers, self._shape = buffers, shape
        self._tensor: torch.Tensor | None = None
        self._lock = threading.Lock()

    def __call__(self) -> torch.Tensor:
        """The tensor, the same for all who ask."""
        with self._lock:
            if self._tensor is None:
                self._tensor = self._buffers.empty(self._shape)
            return self._tensor
