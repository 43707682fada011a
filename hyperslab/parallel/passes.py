"""Forward and backward passes of a step: piece after piece on one rank, or through the stages of a pipeline."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from hyperslab.model.transformer import Predictions
from hyperslab.parallel.config import Schedule
from hyperslab.parallel.mesh import Mesh
from hyperslab.parallel.tasks import Task

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Samples that pass through the model together."""

    task: Task
    batch: Any
    sample: Any
    """As the model takes it, on its device."""

    def loss(self, model: Callable[..., Predictions], tokens_BND: torch.Tensor | None = None) -> torch.Tensor:
        """The part of this rank in the loss.

        Parameters
        ----------
        tokens_BND
            What the stage before gave.
        """
        # A model of somebody's own that is no stage need not take tokens.
        staged = model if tokens_BND is None else partial(model, tokens_BND=tokens_BND)
        return self.task.loss_of(staged, self.batch, self.sample)


class Passes:
    """Passes of pieces through a model that this rank holds all layers of."""

    def __init__(self, model: nn.Module, mesh: Mesh) -> None:
        self.model, self.mesh = model, mesh

    def train(self, pieces: Sequence[Piece]) -> torch.Tensor:
        """Add up the gradients of the mean of the pieces' losses; this rank's part of it."""
        total = torch.zeros((), device=self.mesh.device)
        assert isinstance(self.model, FSDPModule)
        for number, piece in enumerate(pieces, start=1):
            self.model.set_requires_gradient_sync(number == len(pieces))
            loss = piece.loss(self.model) / len(pieces)
            # What shares parameters out takes the mean of gradients, and the parts of a sample are to be summed.
            torch.autograd.backward(loss * self.mesh.layout.domain)
            total += loss.detach()
        return total

    def judge(self, piece: Piece) -> torch.Tensor:
        """The part of this rank in the loss, without gradients."""
        return piece.loss(self.model)


class Pipeline(Passes):
    """Passes of pieces through the stages of a model, of which this rank holds one."""

    def __init__(self, model: nn.Module, mesh: Mesh, *, width: int, dtype: torch.dtype, schedule: Schedule) -> None:
        """Make the passes.

        Parameters
        ----------
        width
            Features of a token.
        dtype
            That of tokens between stages.
        """
        super().__init__(model, mesh)
        self._group = mesh.group("pipeline")
        self._width, self._dtype, self._schedule = width, dtype, schedule
        self._stages: dict[tuple[int, ...], tuple[_Stage, Any]] = {}

    @property
    def _stage(self) -> int:
        return self._group.rank()

    @property
    def _is_last(self) -> bool:
        return self._stage == self._group.size() - 1

    def train(self, pieces: Sequence[Piece]) -> torch.Tensor:
        """As `Passes.train`; the last stage alone has a loss."""
        (shape,) = {self._shape(piece) for piece in pieces}  # as `Task.align` has made them
        stage, schedule = self._stages_of(shape, len(pieces))
        stage.run = partial(self._run, pieces)
        numbers, losses = torch.arange(len(pieces)), list[torch.Tensor]()
        try:
            schedule.step(numbers=numbers, target=numbers, losses=losses, return_outputs=False)
        except RuntimeError as error:
            raise _first_cause(error) from None
        if not losses:
            return torch.zeros((), device=self.mesh.device)
        return torch.stack(losses).detach().sum() / self.mesh.layout.domain

    def judge(self, piece: Piece) -> torch.Tensor:
        """As `Passes.judge`; the last stage alone has a loss."""
        tokens_BND = None
        ranks = dist.get_process_group_ranks(self._group)
        if self._stage > 0:
            tokens_BND = torch.empty(self._shape(piece), dtype=self._dtype, device=self.mesh.device)
            dist.recv(tokens_BND, ranks[self._stage - 1], group=self._group)
        if self._is_last:
            return piece.loss(self.model, tokens_BND)
        given = self.model(piece.task.name, piece.sample, tokens_BND=tokens_BND)["tokens"]
        dist.send(given.contiguous(), ranks[self._stage + 1], group=self._group)
        return torch.zeros((), device=self.mesh.device)

    def _run(self, pieces: Sequence[Piece], number: int, tokens_BND: torch.Tensor | None) -> torch.Tensor:
        """One piece through this stage."""
        piece = pieces[number]
        if self._is_last:
            return piece.loss(self.model, tokens_BND) * (self.mesh.layout.domain / len(pieces))
        tokens: torch.Tensor = self.model(piece.task.name, piece.sample, tokens_BND=tokens_BND)["tokens"]
        return tokens

    def _shape(self, piece: Piece) -> tuple[int, int, int]:
        """Of tokens between stages."""
        return (*piece.task.tokens_shape(piece.sample), self._width)

    def _stages_of(self, shape: tuple[int, ...], pieces: int) -> "tuple[_Stage, Any]":
        """The stage and its schedule for tokens of that shape: what is received is put into memory made for it."""
        key = (*shape, pieces)
        if key not in self._stages:
            device = self.mesh.device
            tokens = torch.empty(shape, dtype=self._dtype, device="meta", requires_grad=True)
            stage = _Stage(
                self.model,
                self._stage,
                self._group.size(),
                device,
                input_args=(tokens,),
                output_args=(torch.empty((), device="meta", requires_grad=True) if self._is_last else tokens,),
                group=self._group,
            )
            made = SCHEDULES[self._schedule](stage, pieces, loss_fn=_as_it_is, scale_grads=False)
            self._stages[key] = stage, made
        return self._stages[key]


class _Stage(PipelineStage):
    """A stage that is told which piece to run: the pieces themselves are no tensors."""

    run: Callable[[int, torch.Tensor | None], torch.Tensor]

    def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        tokens_BND = args[0] if args else None
        return self.run(int(kwargs["numbers"]), tokens_BND)


def _first_cause(error: BaseException) -> BaseException:
    """What happened in a stage: torch wraps it in errors of its own."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _as_it_is(loss: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return loss
