"""What the commands share: where they print, and the arguments that several of them take."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

console = Console(highlight=False)
if not console.is_terminal:
    console.width = 120  # a file or a pipe has no width of its own, and 80 columns break the table

CampaignFile = Annotated[Path, typer.Argument(metavar="CAMPAIGN", help="The campaign's YAML file.")]
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="A campaign's directory.")]
OptionalDirectory = Annotated[
    Path | None, typer.Argument(metavar="[DIR]", help="A campaign's directory, or one that holds several.")
]
SiteName = Annotated[str, typer.Option("--site", help="Name of a site, or the path of its YAML file.")]
Assignments = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="Lay a setting over the file's.")]
NewDirectory = Annotated[Path | None, typer.Option("--dir", help="Where to put it; campaigns/NAME where absent.")]


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Print (title, text) pairs, each on a line of its own."""
    for title, text in pairs:
        console.print(f"[bold]{title}[/bold]: ", end="")
        console.print(text, markup=False, soft_wrap=True)
