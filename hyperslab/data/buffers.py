"""Memory for batches that is used again as soon as nothing refers to a batch any more."""

import math
import threading
import weakref

import numpy as np
import numpy.typing as npt
import torch


class Buffers:
    """Gives tensors whose memory comes back when the last tensor over it is gone.

    Fresh memory costs as much time as decompressing into it does: the system clears it page by page. What waits to be
    used again does not raise the peak: with what is lent it is never more than was once lent at the same time.
    """

    def __init__(self, *, pin: bool = False) -> None:
        self._pin = pin
        self._lent_bytes = self._idle_bytes = self._most_bytes = 0
        self._idle: dict[int, list[npt.NDArray[np.float32]]] = {}
        # A lease may end in the middle of `empty`: garbage is collected anywhere.
        self._lock = threading.RLock()

    @property
    def held_bytes(self) -> int:
        """Memory that is lent, and that waits to be used again."""
        return self._lent_bytes + self._idle_bytes

    def empty(self, shape: tuple[int, ...]) -> torch.Tensor:
        """An uninitialised tensor of float32; page-locked ones come from PyTorch, which uses them again itself."""
        if self._pin:
            return torch.empty(shape, pin_memory=True)
        memory = self._lend(math.prod(shape))
        lease = memory[:]  # which the tensor, and every view of it, holds on to
        weakref.finalize(lease, self._give_back, memory).atexit = False
        return torch.from_numpy(lease).view(shape)

    def _lend(self, size: int) -> npt.NDArray[np.float32]:
        with self._lock:
            self._most_bytes = max(self._most_bytes, self._lent_bytes + 4 * size)
            if idle := self._idle.get(size):
                memory = idle.pop()
                self._idle_bytes -= memory.nbytes
            else:
                while self.held_bytes + 4 * size > self._most_bytes:
                    # The size that came back longest ago may be asked for no more.
                    self._idle_bytes -= sum(memory.nbytes for memory in self._idle.pop(next(iter(self._idle))))
                memory = np.empty(size, np.float32)
            self._lent_bytes += memory.nbytes
            return memory

    def _give_back(self, memory: npt.NDArray[np.float32]) -> None:
        with self._lock:
            self._lent_bytes -= memory.nbytes
            self._idle_bytes += memory.nbytes
            self._idle[memory.size] = [*self._idle.pop(memory.size, []), memory]


_shared: "weakref.WeakValueDictionary[bool, Buffers]" = weakref.WeakValueDictionary()


def shared_buffers(*, pin: bool) -> Buffers:
    """The buffers of all loaders of a process: what one gives back, another one takes."""
    return _shared.setdefault(pin, Buffers(pin=pin))


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
