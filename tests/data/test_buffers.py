"""Memory is used again, never while somebody holds it, and what waits for that does not raise the peak."""

import random

import torch

from hyperslab.data.buffers import Buffers, shared_buffers


def test_memory_that_nobody_holds_is_used_again() -> None:
    buffers = Buffers()
    first = buffers.empty((2, 3))
    place, view = first.data_ptr(), first[1]
    del first
    assert buffers.empty((2, 3)).data_ptr() != place
    del view
    assert buffers.empty((3, 2)).data_ptr() == place


def test_what_waits_and_what_is_lent_are_never_more_than_was_once_lent() -> None:
    buffers = Buffers()
    held = [buffers.empty((10,)) for _ in range(2)]
    assert buffers.held_bytes == 80
    held.clear()
    # Both wait.
    assert buffers.held_bytes == 80
    held.append(buffers.empty((15,)))
    # 60 bytes leave no room for one of 40 beside them.
    assert buffers.held_bytes == 60
    held.append(buffers.empty((15,)))
    assert buffers.held_bytes == 120
    held.clear()
    held.append(buffers.empty((20,)))
    # 80 bytes leave no room for both of 60, which go together: they are of a size that is asked for no more.
    assert buffers.held_bytes == 80
    held.append(buffers.empty((10,)))
    assert buffers.held_bytes == 120


def test_sizes_that_change_all_the_time_do_not_pile_up() -> None:
    buffers, chance = Buffers(), random.Random(0)
    held: list[torch.Tensor] = []
    most = 0
    for _ in range(2000):
        if len(held) == 4:
            held.pop(chance.randrange(4))
        held.append(buffers.empty((chance.randrange(50, 100),)))
        most = max(most, sum(tensor.nbytes for tensor in held))
        assert buffers.held_bytes <= most
    held.clear()
    assert buffers.held_bytes <= most


def test_an_empty_tensor_takes_nothing() -> None:
    buffers = Buffers()
    assert buffers.empty((0, 5)).shape == (0, 5)
    assert buffers.held_bytes == 0


def test_all_loaders_of_a_process_share_their_buffers() -> None:
    first, second = shared_buffers(pin=False), shared_buffers(pin=False)
    assert first is second
    assert shared_buffers(pin=True) is not first
