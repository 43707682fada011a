"""Commands about stores: `hyperslab stage`, `verify` and `repair`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hyperslab.errors import UserError
from hyperslab.site_configs.loader import load_site
from hyperslab.workflows.campaign import CampaignDir, load_campaign
from hyperslab.workflows.options import Assignments, Directory, NewDirectory, SiteName, console, print_pairs

if TYPE_CHECKING:
    from hyperslab.workflows.run import Driver


def stage(
    target: Annotated[Path, typer.Argument(metavar="CAMPAIGN|DIR", help="A campaign's YAML file, or its directory.")],
    site: SiteName = "local",
    assignments: Assignments = [],  # noqa: B006
    directory: NewDirectory = None,
    append: Annotated[bool, typer.Option("--append", help="Add files that came later, without a rewrite.")] = False,
    files: Annotated[
        list[str], typer.Option("--files", metavar="PATTERN", help="What to append; data.files where absent.")
    ] = [],  # noqa: B006
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
) -> None:
    """Stage raw files into a verified store, and stop there."""
    from hyperslab.data.sources.paths import absolute
    from hyperslab.data.staging import read_recipe
    from hyperslab.workflows.run import longer_recipe, start
    from hyperslab.workflows.steps.plan import describe_store, plan_store

    if target.is_dir():
        found = CampaignDir(target.absolute())
        found.read()
        patterns = [absolute(pattern, Path.cwd()) for pattern in files]
        if dry_run:
            recipe = longer_recipe(found, patterns) if append else None
            print_pairs(describe_store(recipe or read_recipe(found.store)))
        else:
            _stage(found, (lambda driver: driver.append(patterns)) if append else None)
        return
    if append:
        raise UserError(f"{target}: --append adds to a store that is there: give the campaign's directory")
    campaign, machine = load_campaign(target, assignments), load_site(site)
    recipe = plan_store(campaign, machine)
    if dry_run:
        print_pairs(describe_store(recipe))
        return
    found = CampaignDir((directory or Path("campaigns") / campaign.name).absolute())
    start(campaign, machine, recipe, found)
    _stage(found)


def _stage(directory: CampaignDir, prepare: "Callable[[Driver], None] | None" = None) -> None:
    from hyperslab.data.store import open_store
    from hyperslab.workflows.progress import watching
    from hyperslab.workflows.run import drive

    with watching(directory, directory.read(), console) as watch:
        drive(directory, watch, until="stage", prepare=prepare)
    store = open_store(directory.store)
    console.print(f"{store.path}: staged; digest {store.digest}, {len(store.time)} frames", soft_wrap=True)


def repair(directory: Directory) -> None:
    """Stage again what is damaged in a finished store, and nothing else."""
    _stage(CampaignDir(directory.absolute()), lambda driver: driver.repair())


def verify(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="A staged store, or a campaign's directory.")],
) -> None:
    """Reread every file of a store and compare it with the manifest."""
    from hyperslab.data.store import open_store
    from hyperslab.data.verify import is_appended_to
    from hyperslab.data.verify import verify as verify_store

    path = store.absolute()
    if CampaignDir(path).journal.exists():
        path = CampaignDir(path).store
    if is_appended_to(path):
        console.print(f"{path}: an append was begun; its statistics are compared when it is finished", soft_wrap=True)
    problems = list(verify_store(path))
    for problem in problems:
        console.print(problem, markup=False, soft_wrap=True)
    if problems:
        raise UserError(
            f"{path}: {len(problems)} thing(s) are not as they were staged; "
            "mend the store with `hyperslab repair`, or restore it from a copy"
        )
    opened = open_store(path)
    console.print(f"{path}: sound; digest {opened.digest}, {len(opened.time)} frames", soft_wrap=True)
