"""Commands that make raw files: `hyperslab simulate` and `hyperslab fetch`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hyperslab.errors import UserError

app = typer.Typer()
console = Console(highlight=False, soft_wrap=True)

Output = Annotated[Path, typer.Argument(metavar="OUT", help="Directory for the files.")]


@app.command()
def simulate(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Kind of archive: era5, lartpc or fmri.")],
    out: Output,
    size: Annotated[str, typer.Option("--size", help="Size of all files together, such as 50MB or 2GB.")] = "50MB",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Same seed, same archive.")] = 0,
    form: Annotated[
        str | None, typer.Option("--format", help="Format of the files; the usual one where absent.")
    ] = None,
    grid: Annotated[
        float | None, typer.Option("--grid", help="Degrees between grid points of an era5 archive.")
    ] = None,
    runs: Annotated[int | None, typer.Option("--runs", min=1, help="Least number of runs of an fmri archive.")] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, max=256, help="Threads that compute.")] = 2,
) -> None:
    """Write raw files of a small physical model, in the format of a real archive."""
    from hyperslab.data.sources.synthetic.archive import Order, parse_size
    from hyperslab.data.sources.synthetic.simulate import FORMS
    from hyperslab.data.sources.synthetic.simulate import simulate as write

    for option, value, owner in (("--grid", grid, "era5"), ("--runs", runs, "fmri")):
        if value is not None and kind != owner:
            raise UserError(f"{option}: is of {owner} archives alone; leave it out for {kind}")
    usual = next(iter(FORMS.get(kind, {"": ""})))
    order = Order(
        out=out.absolute(),
        size_bytes=parse_size(size),
        seed=seed,
        form=form or usual,
        workers=jobs,
        grid_degrees=grid,
        runs=runs,
    )
    files = write(kind, order)
    total = sum(path.stat().st_size for path in order.out.rglob("*") if path.is_file())
    console.print(
        f"{order.out}: {len(files)} raw file(s), {total:,} bytes in all: {FORMS[kind][order.form]}", markup=False
    )
