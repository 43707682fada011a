"""Commands that measure: `hyperslab bench read`."""

from pathlib import Path
from typing import Annotated

import psutil
import typer
from rich.table import Table

from hyperslab.errors import UserError
from hyperslab.workflows.campaign import CampaignDir
from hyperslab.workflows.options import console

app = typer.Typer(help="Measure what a machine gives.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keep `read` a command of its own while it is the only one."""


@app.command()
def read(
    store: Annotated[str, typer.Argument(metavar="STORE", help="A store or its URL, or a campaign's directory.")],
    split: Annotated[str, typer.Option(help="The split whose windows are read.")] = "train",
    frames: Annotated[int | None, typer.Option(min=1, help="Frames in a sample: 2, or 1 event.")] = None,
    parts: Annotated[
        str, typer.Option(metavar="N,N", help="Tiles along each axis of space; the first tile is read.")
    ] = "",
    batch: Annotated[int, typer.Option(min=1, max=65536, help="Samples in a batch.")] = 8,
    workers: Annotated[str, typer.Option(metavar="N,N", help="Numbers of threads to try.")] = "1,2,4",
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="About how long to read for each.")] = 3.0,
    cold: Annotated[bool, typer.Option("--cold", help="Let the system forget the store first.")] = False,
) -> None:
    """Read random samples: how many a second, beside the same chunks fetched and decompressed and nothing else."""
    from hyperslab.data.ahead import MAX_WORKERS, Reading
    from hyperslab.data.frames import SPLITS, find_windows
    from hyperslab.data.loader import Sampling
    from hyperslab.data.speed import make_loader, measure, needed_bytes
    from hyperslab.data.store import open_store, place_of
    from hyperslab.data.tiles import make_tile

    if split not in SPLITS:
        raise UserError(f"--split: found {split!r}; choose one of {', '.join(SPLITS)}")
    place = place_of(store)
    if "://" not in store and CampaignDir(Path(store).absolute()).journal.exists():
        place = CampaignDir(Path(store).absolute()).store
    opened = open_store(place)
    if not opened.arrays:
        raise UserError(f"{store}: is a dataset of anemoi-datasets; only stores of Hyperslab are measured")
    cuts = _numbers(parts, "--parts") or [1] * len(opened.space)
    if len(cuts) != len(opened.space):
        axes = ", ".join(opened.space) or "none"
        raise UserError(f"--parts: found {parts!r}; give a number for each axis of the store's space ({axes})")
    if any(count > size for count, size in zip(cuts, opened.frame_shape[1:], strict=True)):
        sizes = " x ".join(map(str, opened.frame_shape[1:]))
        raise UserError(f"--parts: found {parts!r}; the axes have {sizes} cells")
    tile = None if opened.is_ragged else make_tile(opened.frame_shape[1:], cuts, 0)
    table = Table("workers", "samples/s", "MB/s", "share of floor", "stored KB a sample", box=None, header_style="bold")
    for column in table.columns:
        column.justify = "right"
    sampling = Sampling(history=frames or (1 if opened.is_ragged else 2), lead=1, rollout=0)
    if not len(find_windows(opened.segment, opened.valid, opened.splits[split], sampling.span)):
        raise UserError(
            f"{store}: the {split} split has no unbroken window of {sampling.span} frames; choose another --frames "
            "or --split"
        )
    for count in _numbers(workers, "--workers", MAX_WORKERS) or [1]:
        loader = make_loader(opened, split, sampling, tile, Reading(workers=count))
        needed, free = needed_bytes(loader, batch), psutil.virtual_memory().available
        if needed > free:
            raise UserError(
                f"--batch: {batch} samples of {sampling.history} frames take {needed / 1e6:,.0f} MB with {count} "
                f"worker(s), {free / 1e6:,.0f} MB of memory are free; give a smaller --batch, --frames or --workers"
            )
        speed = measure(loader, batch, seconds, cold=cold)
        table.add_row(
            str(count),
            f"{speed.samples / speed.seconds:.0f}",
            f"{speed.value_bytes / speed.seconds / 1e6:.0f}",
            f"{speed.floor_seconds / speed.seconds:.0%}",
            f"{speed.stored_bytes / speed.samples / 1e3:.0f}",
        )
    console.print(table)


def _numbers(text: str, option: str, most: int | None = None) -> list[int]:
    """Whole numbers from 1 on, separated by commas."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    # Python itself turns no more than some thousand digits into a number.
    numbers = [int(word) if word.isdecimal() and len(word) < 10 else 0 for word in words]
    if any(not 1 <= number <= (most or number) for number in numbers) or (text and not words):
        bounds = f"from 1 to {most}" if most else "from 1 on"
        raise UserError(f"{option}: found {text[:40]!r}; give whole numbers {bounds}, such as 1,2,4")
    return numbers
