"""What a rank holds and reads in each layout, counted in a training step, beside what arithmetic says.

    OMP_NUM_THREADS=1 python benchmarks/layouts.py [--axes shard,tensor,pipeline,domain] [--ranks 2,4] [--width 128]
                                                   [--depth 4] [--batch 4]

Ranks are forked on this machine; nothing is timed. Counted on each rank, in the second step, for the same global batch:

- parameters: bytes of this rank's pieces of them;
- gradients and optimizer state: bytes of this rank's pieces, AdamW's two moments and its counts of steps;
- kept for the backward pass: the most bytes, at any time of the step, of what autograd has been given to keep, as
  `torch.autograd.graph.saved_tensors_hooks` sees it: each storage once, until it is let go. Parameters (gathered ones
  as well), buffers and the batch itself are left out. What an operation needs while it computes is not counted;
- tokens between layers: samples times tokens that one block takes at a time;
- values read: bytes of the hyperslabs that the loader asks the store for, in a step;
- chunks decoded: bytes of the chunks that these touch: bands of space as well, whose borders lie elsewhere.

Arithmetic says, with n ranks:

- `shard`: a share of 1/n of everything;
- `tensor`: 1/n of the matrices that regions share out, all other parameters whole; 1/n of tokens and of what is kept,
  but for the inputs of regions, which are gathered: two a layer;
- `pipeline`: some layers, with what comes before the first or after the last. The batch passes in n pieces, of which
  stage k, from 0, keeps n - k at a time (1F1B). Each stage reads all samples;
- `domain`: 1/n of parameters, tokens and of what is kept, beside which it keeps a copy of values that were exchanged;
- `domain` and `tensor`: the band of whole rows that its tokens lie in is read. Tokens come in boxes: a rank's run may
  begin and end within a row of boxes, which it reads whole, and keeps some of until its loss is worked out.

What one rank keeps is the measure of what others keep. The largest of any rank stands beside the largest that
arithmetic says: the ratio is to be 1. The last column is the share of what a single rank has.
"""

import argparse
import json
import math
import sys
import tempfile
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # FSDP imports it on its first use: once here rather than on every forked rank
import torch.distributed as dist
from learning import stage
from torch import nn
from torch.distributed.tensor import DTensor

from hyperslab.data.ahead import Reading
from hyperslab.data.order import Order
from hyperslab.data.store import open_store
from hyperslab.model.block import Block
from hyperslab.model.lattice import box_of
from hyperslab.parallel import gradients
from hyperslab.parallel.apply import apply
from hyperslab.parallel.launch import start_ranks
from hyperslab.parallel.layout import Layout, check_model, make_layout
from hyperslab.parallel.mesh import make_mesh
from hyperslab.parallel.passes import Passes, Piece
from hyperslab.parallel.stages import split_layers
from hyperslab.parallel.tasks import Draws, FieldTask
from hyperslab.parallel.team import Team
from hyperslab.parallel.trainer import make_optimizer
from hyperslab.workflows.campaign import MAIN, Campaign
from hyperslab.workflows.steps.pretrain import build_model
from hyperslab.workflows.streams import make_tasks

GRID_DEGREES = 1.0
PATCH = 12
"""Of 181 rows 16 rows of patches, so that a quarter is a row of boxes."""
FLOAT_BYTES = 4
KINDS = {
    "parameters": "parameters, KiB",
    "state": "gradients and optimizer state, KiB",
    "kept": "kept for the backward pass, KiB",
    "tokens": "tokens between layers",
    "values": "values read, KiB",
    "chunks": "chunks decoded, KiB",
}
Counts = dict[str, float]


def main() -> int:
    """Print the tables; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--axes", default="shard,tensor,pipeline,domain")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--batch", type=int, default=4, help="samples in the batch of all ranks")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = stage(folder, GRID_DEGREES)
        (alone,) = count_on(chosen, store, "shard", 1, folder)
        whole = Whole.of(chosen, store, alone)
        print(f"{whole.batch} samples of {whole.tokens} tokens; all of it on one rank:")
        print("".join(f"  {title}: {shown(kind, alone[kind])}\n" for kind, title in KINDS.items()))
        for axis in chosen.axes.split(","):
            for ranks in map(int, chosen.ranks.split(",")):
                layout = layout_of(campaign_of(chosen, axis, ranks), ranks)
                found = count_on(chosen, store, axis, ranks, folder)
                report(layout, found, [whole.expected(layout, rank) for rank in range(ranks)], alone)
    return 0


def report(layout: Layout, found: list[Counts], expected: list[Counts], alone: Counts) -> None:
    """Print what each rank has, beside what it should have."""
    heads = "".join(f"{f'rank {rank}':>10}" for rank in range(len(found)))
    print(f"{layout!s:36}{heads}{'most':>10}{'arithmetic':>12}{'ratio':>8}{'of one rank':>13}")
    for kind, title in KINDS.items():
        most = max(own[kind] for own in found)
        says = max((own[kind] for own in expected if kind in own), default=None)
        beside = f"{'':20}" if says is None else f"{shown(kind, says):>12}{most / says:8.3f}"
        each = "".join(f"{shown(kind, own[kind]):>10}" for own in found)
        print(f"  {title:34}{each}{shown(kind, most):>10}{beside}{most / alone[kind]:13.3f}")
    print(flush=True)


def shown(kind: str, value: float) -> str:
    """A number as tables have it."""
    return f"{value if kind == 'tokens' else value / 1024:,.0f}"


def campaign_of(chosen: argparse.Namespace, axis: str, ranks: int) -> Campaign:
    """The campaign, as a person would write it."""
    return Campaign.model_validate(
        {
            "name": "layouts",
            "data": {"files": ["-"]},
            "model": {"width": chosen.width, "depth": chosen.depth, "heads": 4, "patch": PATCH, "history": 2},
            "train": {"batch": chosen.batch},
            "parallel": {"ranks": ranks} | ({} if axis == "shard" else {axis: ranks}),
        }
    )


def layout_of(campaign: Campaign, ranks: int) -> Layout:
    """The layout that it asks for."""
    layout = make_layout(campaign.parallel, ranks, campaign.train.batch)
    check_model(layout, campaign.model)
    return layout


def task_of(campaign: Campaign, store: Path) -> FieldTask:
    """What is learned, of whole samples."""
    (task,) = make_tasks(campaign, {MAIN: open_store(store)})
    assert isinstance(task, FieldTask)
    return task


def count_on(chosen: argparse.Namespace, store: Path, axis: str, ranks: int, folder: Path) -> list[Counts]:
    """What each of so many ranks counts."""
    campaign = campaign_of(chosen, axis, ranks)
    code = start_ranks(partial(count, campaign, layout_of(campaign, ranks), store, folder), ranks, 300)
    if code:
        sys.exit(code)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


def count(campaign: Campaign, layout: Layout, store: Path, folder: Path) -> int:
    """Train two steps as one rank, and leave what it counts in a file."""
    torch.set_num_threads(1)
    rank, mesh = dist.get_rank(), make_mesh(layout, "cpu")
    task = task_of(campaign, store).for_team(layout.part(rank), Team(mesh.team))
    passes = apply(build_model(campaign, (task,)), mesh, "fp32", schedule=campaign.parallel.schedule)
    optimizer = make_optimizer(passes.model, campaign.train)
    windows = task.windows("train")
    order = Order(seed=campaign.train.seed, batch=campaign.train.batch, windows=(windows,))
    loader = task.loader(windows, Reading())
    counts: Counts = {}
    for step in range(2):
        drawn = [(slots, order.draw(step, slots)[1]) for slots in layout.pieces_of(rank, campaign.train.batch)]
        pieces = []
        for slots, numbers in drawn:
            batch = loader.read(numbers.tolist())
            sample = task.sample(batch, Draws(seed=0, numbers=slots, turn=step))
            pieces.append(Piece(task=task, batch=batch, sample=sample))
        counts = train_step(passes, pieces, optimizer, campaign.train.clip_norm)
        asked = [hyperslab for _, numbers in drawn for hyperslab in loader.hyperslabs(numbers)]
        counts["values"] = FLOAT_BYTES * sum(math.prod(at.stop - at.start for at in ranges) for _, ranges in asked)
        counts["chunks"] = sum(
            FLOAT_BYTES * math.prod(array.chunk) * len(touched)
            for array, ranges in asked
            for _, touched in array.touched(*ranges)
        )
    (folder / f"{rank}.json").write_text(json.dumps(counts))
    return 0


def train_step(passes: Passes, pieces: list[Piece], optimizer: torch.optim.Optimizer, clip_norm: float) -> Counts:
    """Train one step; what is held of parameters and in the step."""
    model, tokens = passes.model, list[int]()
    kept = Kept(model, [tensor for piece in pieces for tensor in (piece.sample.inputs_BTCS, piece.batch.target)])
    marks = list[int]()

    def before(_: nn.Module, given: tuple[Any, ...]) -> None:
        tokens.append(given[0].shape[0] * given[0].shape[1])
        marks.append(kept.held_bytes)

    def after(_: nn.Module, __: tuple[Any, ...], ___: torch.Tensor) -> None:
        marks.append(kept.held_bytes)

    blocks = [block for block in model.modules() if isinstance(block, Block)]
    hooks = [block.register_forward_pre_hook(before) for block in blocks]
    hooks += [block.register_forward_hook(after) for block in blocks]
    optimizer.zero_grad(set_to_none=True)
    with torch.autograd.graph.saved_tensors_hooks(kept.pack, kept.unpack):
        passes.train(pieces)
    for hook in hooks:
        hook.remove()
    gradients.complete(model.parameters(), passes.mesh)
    gradients.clip(model.parameters(), passes.mesh, clip_norm)
    optimizer.step()
    held = list(model.parameters())
    state = [value for own in optimizer.state.values() for value in own.values()]
    return {
        "parameters": bytes_of(held),
        "state": bytes_of([own.grad for own in held if own.grad is not None]) + bytes_of(state),
        "kept": kept.most_bytes,
        "tokens": max(tokens),
        # Of one rank and one piece: what is kept before the first layer, and up to the last one's end.
        "kept before": marks[0],
        "kept until": marks[2 * len(blocks) - 1],
    }


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the pieces of tensors that lie on this rank."""
    return sum((held.to_local() if isinstance(held, DTensor) else held).nbytes for held in tensors)


class _Held:
    """A tensor that autograd keeps."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


class Kept:
    """Counts the bytes of storages that autograd keeps, but for those of a model and of what is there anyway."""

    def __init__(self, model: nn.Module, others: list[torch.Tensor]) -> None:
        self._model = model
        self._others = {_pointer(tensor) for tensor in (*others, *model.buffers())}
        self._users: dict[int, int] = {}
        """How many tensors that are kept lie in a storage, by its place in memory."""
        self.held_bytes = self.most_bytes = 0

    def pack(self, tensor: torch.Tensor) -> _Held:
        """Take note of what autograd keeps."""
        held = _Held(tensor.detach())
        place, size = _pointer(tensor), tensor.untyped_storage().nbytes()
        # While a layer computes, its parameters are the gathered ones.
        if place not in self._others and place not in {_pointer(own) for own in self._model.parameters()}:
            if place not in self._users:
                self.held_bytes += size
                self.most_bytes = max(self.most_bytes, self.held_bytes)
            self._users[place] = self._users.get(place, 0) + 1
            weakref.finalize(held, self._let_go, place, size)
        return held

    def unpack(self, held: _Held) -> torch.Tensor:
        """What was kept."""
        return held.tensor

    def _let_go(self, place: int, size: int) -> None:
        self._users[place] -= 1
        if not self._users[place]:
            del self._users[place]
            self.held_bytes -= size


def _pointer(tensor: torch.Tensor) -> int:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.untyped_storage().data_ptr()


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A step on one rank, from which follows what each rank of a layout should have."""

    batch: int
    depth: int
    width: int
    tokens: int
    shared: int
    """Bytes of a layer's matrices that regions share out."""
    layer: int
    """Bytes of a layer's parameters."""
    before: int
    """Bytes of parameters before the layers."""
    after: int
    """Bytes of parameters after them."""
    kept: tuple[float, float, float]
    """Bytes kept for the backward pass before, in and after the layers."""
    task: FieldTask

    @staticmethod
    def of(chosen: argparse.Namespace, store: Path, alone: Counts) -> "Whole":
        """The step of a campaign, and what one rank has kept in it."""
        campaign = campaign_of(chosen, "shard", 1)
        task = task_of(campaign, store)
        model = build_model(campaign, (task,))
        sizes = {name: own.nbytes for name, own in model.named_parameters()}
        first = {name: size for name, size in sizes.items() if name.startswith("blocks.0.")}
        linear = [f"{name}.{own}." for name, region in Block.regions.items() for own in region.columns + region.rows]
        return Whole(
            batch=chosen.batch,
            depth=chosen.depth,
            width=chosen.width,
            tokens=len(task.lattice),
            shared=sum(size for name, size in first.items() if name.startswith(tuple(f"blocks.0.{x}" for x in linear))),
            layer=sum(first.values()),
            before=sum(size for name, size in sizes.items() if ".embed" in name),
            after=sum(size for name, size in sizes.items() if ".head_" in name or name.startswith("norm.")),
            kept=(
                alone["kept before"],
                alone["kept until"] - alone["kept before"],
                alone["kept"] - alone["kept until"],
            ),
            task=task,
        )

    def expected(self, layout: Layout, rank: int) -> Counts:
        """What a rank should have."""
        stage = layout.coordinates(rank)["pipeline"]
        layers = len(split_layers([1.0] * self.depth, layout.pipeline)[stage])
        is_first, is_last = stage == 0, stage == layout.pipeline - 1
        team, samples = layout.domain * layout.tensor, self.batch / layout.data
        copied = self.layer - self.shared
        parameters = layers * (self.shared / layout.tensor + copied) + is_first * self.before + is_last * self.after
        parameters /= layout.shard * layout.domain
        before, within, after = (share * samples / self.batch / layout.pieces / team for share in self.kept)
        within *= layers / self.depth
        # Each rank of `tensor` has the inputs of a layer's two regions from all of them.
        gathered = FLOAT_BYTES * 2 * layers * samples / layout.pieces * self.tokens * self.width
        within += gathered * (1 - 1 / layout.tensor)
        # One rank's values are a view of what it keeps anyway, those that were exchanged are a copy.
        within += gathered / 2 / layout.domain * (layout.domain > 1)
        in_flight = min(layout.pieces, layout.pipeline - stage)
        return {
            "parameters": parameters,
            "state": 3 * parameters,
            "kept": in_flight * (is_first * before + within) + is_last * after,
            "tokens": samples / layout.pieces * math.ceil(self.tokens / team),
            "values": samples * self.frame_bytes(layout.part(rank).number, team),
        }

    def frame_bytes(self, number: int, parts: int) -> float:
        """Bytes of a sample's frames in the rows that one of so many runs of tokens reaches."""
        patches = self.task.field.patches
        box, (_, rows, columns) = box_of(patches.shape, self.task.field.block), patches.sizes
        of_box_row = patches.shape[0] * box[1] * math.prod(patches.shape[2:])
        length = math.ceil(self.tokens / parts)
        side = box[1] * patches.patch[1]
        start = number * length // of_box_row * side
        stop = min(rows, math.ceil(min(self.tokens, (number + 1) * length) / of_box_row) * side)
        frames = self.task.sampling.history + self.task.sampling.rollout
        return FLOAT_BYTES * frames * len(self.task.store.channels) * (stop - start) * columns


if __name__ == "__main__":
    sys.exit(main())
