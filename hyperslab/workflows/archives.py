"""Commands about raw files: `hyperslab inspect`, `simulate` and `fetch`."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hyperslab.errors import UserError
from hyperslab.workflows.options import console

if TYPE_CHECKING:
    from hyperslab.data.fetch.plan import Item

_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(I?)B?", re.IGNORECASE)

Output = Annotated[Path, typer.Argument(metavar="OUT", help="Directory for the files.")]


def inspect(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Raw files.")],
    source: Annotated[str, typer.Option("--source", help="Kind of archive.")] = "era5",
) -> None:
    """Say what raw files are, what would be taken from them, and what is odd in them."""
    from hyperslab.data.sources import source_of

    mistakes = []
    for path in files:
        try:
            found = source_of(source).describe(path if "://" in path else str(Path(path).absolute()))
        except UserError as error:
            mistakes.append(str(error))
            continue
        console.print(f"[bold]{path}[/bold]: {found.kind}", soft_wrap=True)
        for line in found.taken:
            _print(f"  {line}")
        for line in found.oddities:
            _print(f"  odd: {line}", style="yellow")
    if mistakes:
        raise UserError("\nhyperslab: ".join(mistakes))


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
    from hyperslab.data.sources.synthetic.archive import Order
    from hyperslab.data.sources.synthetic.simulate import FORMS
    from hyperslab.data.sources.synthetic.simulate import simulate as write

    for option, value, owner in (("--grid", grid, "era5"), ("--runs", runs, "fmri")):
        if value is not None and kind != owner:
            raise UserError(f"{option}: is of {owner} archives alone; leave it out for {kind}")
    usual = next(iter(FORMS.get(kind, {"": ""})))
    order = Order(
        out=out.absolute(),
        size_bytes=parse_size(size, "--size"),
        seed=seed,
        form=form or usual,
        workers=jobs,
        grid_degrees=grid,
        runs=runs,
    )
    files = write(kind, order)
    total = sum(path.stat().st_size for path in order.out.rglob("*") if path.is_file())
    console.print(
        f"{order.out}: {len(files)} raw file(s), {total:,} bytes in all: {FORMS[kind][order.form]}",
        markup=False,
        soft_wrap=True,
    )


def fetch(
    request: Annotated[Path, typer.Argument(metavar="REQUEST", help="The YAML file that says what to fetch.")],
    out: Output,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be fetched, and fetch nothing.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Reread what was fetched, and fetch nothing.")] = False,
    rate: Annotated[str | None, typer.Option("--rate", help="Most bytes a second, such as 20MB/s.")] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, max=64, help="Files to fetch at a time.")] = 4,
) -> None:
    """Download raw files from a public archive; what is there already is not fetched again."""
    from hyperslab.data.fetch import run
    from hyperslab.data.fetch.archives import archive_of
    from hyperslab.data.fetch.plan import load_request
    from hyperslab.data.fetch.rate import Rate

    per_second = None if rate is None else parse_size(rate.removesuffix("/s"), "--rate")
    wanted, folder = load_request(request), out.absolute()
    if verify:
        _verify(folder)
    elif dry_run:
        found = run.plan(archive_of(wanted), folder)
        for item in found.items:
            _print_item(item, "" if item in found.missing else " (is there)")
        exact = all(item.size_bytes is not None for item in found.missing)
        total = _bytes(found.missing_bytes if exact else None, found.missing_bytes)
        _print(f"{len(found.missing)} of {len(found.items)} file(s) to fetch, {total}")
    else:
        found = run.fetch(archive_of(wanted), folder, jobs=jobs, rate=Rate(per_second), progress=_print_item)
        there = len(found.items) - len(found.missing)
        _print(f"{folder}: fetched {len(found.missing)} file(s); {there} were there already")


def parse_size(text: str, option: str) -> int:
    """Bytes that a text such as `2GB`, `50 MB` or `1.5GiB` means.

    Raises
    ------
    UserError
        When it is no size, or none above zero.
    """
    match = _SIZE.fullmatch(text.strip())
    size = 0
    if match:
        number, unit, binary = match.groups()
        size = int(float(number) * (1024 if binary else 1000) ** _POWERS[unit.upper()])
    if size <= 0:
        raise UserError(f"{option}: found {text!r}; expected a number above zero and a unit, such as 50MB or 2GB")
    return size


def _verify(folder: Path) -> None:
    from hyperslab.data.fetch.run import verify

    count, problems = verify(folder)
    for problem in problems:
        _print(problem)
    if problems:
        raise UserError(f"{folder}: {len(problems)} of {count} file(s) are not what was fetched")
    _print(f"{folder}: sound; {count} file(s)")


def _print_item(item: "Item", note: str = "") -> None:
    _print(f"{item.name}  {_bytes(item.size_bytes, item.estimate_bytes)}{note}")


def _bytes(known: int | None, estimate: int | None) -> str:
    if known is not None:
        return f"{known:,} bytes"
    return "of unknown size" if estimate is None else f"about {estimate:,} bytes"


def _print(text: str, style: str | None = None) -> None:
    console.print(text, style=style, markup=False, soft_wrap=True)
