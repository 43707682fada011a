"""A small model after one step, and saving it."""

from pathlib import Path

import torch

from hyperslab.parallel.catalog import Progress
from hyperslab.parallel.saver import Saver

Tensors = dict[str, torch.Tensor]


def trained_once(seed: int) -> tuple[torch.nn.Linear, torch.optim.AdamW]:
    """A small model after one step, and its optimizer."""
    torch.manual_seed(seed)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    train_on(model, optimizer)
    return model, optimizer


def train_on(model: torch.nn.Linear, optimizer: torch.optim.AdamW) -> None:
    """One more step."""
    torch.autograd.backward(model(torch.ones(1, 3)).square().sum())
    optimizer.step()


def progress_at(step: int) -> Progress:
    return Progress(step=step, store_digest=f"store {step}", order_digest=f"order {step}")


def save_steps(directory: Path, *steps: int, keep: int = 3) -> None:
    """Save a model of its own at each step."""
    with Saver(directory, keep) as saver:
        for step in steps:
            saver.save(*trained_once(seed=step), progress_at(step))


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def state_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Tensors:
    """Copies of parameters and of the optimizer's moments, by name."""
    state = dict(model.state_dict())
    for number, moments in optimizer.state_dict()["state"].items():
        state |= {f"{number}.{name}": value for name, value in moments.items()}
    return {name: value.clone() for name, value in state.items()}


def assert_equal(found: Tensors, expected: Tensors) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name
