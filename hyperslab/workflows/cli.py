"""The `hyperslab` command."""

import logging
import os
import sys
import time
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

import hyperslab
from hyperslab.errors import CampaignFailed, Stopped, UserError, disk_error, exit_code
from hyperslab.site_configs.loader import load_site
from hyperslab.workflows import archives, bench, exports, stores
from hyperslab.workflows.campaign import Campaign, CampaignDir, load_campaign
from hyperslab.workflows.options import (
    Assignments,
    CampaignFile,
    Directory,
    NewDirectory,
    OptionalDirectory,
    SiteName,
    console,
    print_pairs,
)

app = typer.Typer(
    help="Pretrain space-time foundation models: from raw files to a browsable experiment with one command.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
FAILED = 1
INTERRUPTED = 130


def main() -> int:
    """Run the command line; exit code 2 for a person's mistake, 1 for a crash, 130 for an interruption."""
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")

    def body() -> int:
        try:
            return int(app(standalone_mode=False) or 0)
        except (CampaignFailed, Stopped) as error:
            print(f"hyperslab: {error}", file=sys.stderr)
            return INTERRUPTED if isinstance(error, Stopped) else FAILED
        except typer.Exit as error:
            return error.exit_code
        except (typer.Abort, KeyboardInterrupt):
            return INTERRUPTED
        except typer.TyperException as error:
            # The bare command has printed its help, and has nothing more to say.
            words = error.format_message().rstrip(".")
            if not words:
                return 0
            raise UserError(f"{words}; see `hyperslab --help`") from None
        except OSError as error:
            mistake = disk_error(error, error.filename or "standard output")
            if mistake is None:
                raise
            if error.filename is None:
                # What is still to be printed would fail again when the interpreter ends.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise mistake from None

    return exit_code(body)


@app.command()
def run(
    campaign_file: CampaignFile,
    site: SiteName = "local",
    assignments: Assignments = [],  # noqa: B006
    directory: NewDirectory = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
) -> None:
    """Stage, pretrain, evaluate and report: all of a campaign."""
    campaign = load_campaign(campaign_file, assignments)
    _run(
        campaign,
        site,
        CampaignDir((directory or Path("campaigns") / campaign.name).absolute()),
        dry_run=dry_run,
    )


def _run(campaign: Campaign, site_name: str, directory: CampaignDir, *, dry_run: bool) -> None:
    from hyperslab.workflows.jobs import script_of
    from hyperslab.workflows.run import start
    from hyperslab.workflows.steps.plan import describe, make_plan

    site = load_site(site_name)
    plan = make_plan(campaign, site)
    if dry_run:
        print_pairs(describe(campaign, plan, site))
        for step in ("pretrain", "evaluate"):
            console.print(f"[bold]batch script of {step}[/bold]:")
            console.print(script_of(directory, site, step, 1), markup=False, soft_wrap=True)
        return
    start(campaign, site, plan.recipe, directory)
    _drive(directory)


def _drive(directory: CampaignDir) -> None:
    from hyperslab.data.files import read_json
    from hyperslab.workflows.progress import watching
    from hyperslab.workflows.run import drive
    from hyperslab.workflows.steps.report import skill_tables

    with watching(directory, directory.read(), console) as watch:
        drive(directory, watch)
    for table in skill_tables(read_json(directory.evaluation / "skill.json")):
        console.print(table)
    console.print(f"plots: {directory.report}", soft_wrap=True)
    console.print(f"browse it: hyperslab ui {directory.path}", soft_wrap=True)


@app.command()
def resume(directory: Directory) -> None:
    """Carry on with a campaign, from wherever it stands."""
    found = CampaignDir(directory.absolute())
    found.read()
    _drive(found)


@app.command()
def status(directory: OptionalDirectory = None) -> None:
    """Say where a campaign stands."""
    from hyperslab.workflows.progress import render
    from hyperslab.workflows.state import read_state

    for found in _campaigns(directory):
        console.print(render(read_state(found, found.read())))


@app.command()
def cancel(directory: Directory) -> None:
    """Stop a campaign at its next checkpoint."""
    from hyperslab.workflows import run

    found = CampaignDir(directory.absolute())
    run.cancel(found)
    console.print(f"stopped; carry on with: hyperslab resume {found.path}", soft_wrap=True)


@app.command()
def logs(
    directory: Directory,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as the log grows.")] = False,
    step: Annotated[str | None, typer.Option("--step", help="Only this step's: pretrain or evaluate.")] = None,
) -> None:
    """Print what the processes of a campaign printed."""
    found = CampaignDir(directory.absolute())
    found.read()
    printed: dict[Path, int] = {}
    while True:
        paths = [path for path in found.logs.glob("*.log") if path.name.startswith(step or "")]
        paths.sort(key=lambda path: path.stat().st_mtime)
        if not paths and not follow:
            names = sorted({path.stem.rpartition("-")[0] or path.stem for path in found.logs.glob("*.log")})
            raise UserError(f"{found.logs}: no log of {step or 'any step'} yet; there are {', '.join(names) or 'none'}")
        for path in paths:
            with path.open("rb") as file:
                file.seek(printed.get(path, 0))
                text = file.read()
            if path not in printed:
                console.print(f"[bold]{path.name}[/bold]")
            printed[path] = printed.get(path, 0) + len(text)
            console.print(text.decode(errors="replace"), markup=False, end="", soft_wrap=True)
        if not follow:
            return
        time.sleep(0.5)


@app.command()
def init(
    path: Annotated[Path, typer.Argument(metavar="[FILE]", help="Where to write it.")] = Path("campaign.yaml"),
) -> None:
    """Write a commented campaign file to begin with."""
    if path.exists():
        raise UserError(f"{path}: already exists; choose another name")
    template = resources.files("hyperslab.workflows").joinpath("demo/template.yaml").read_text(encoding="utf-8")
    try:
        path.write_text(template, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}; choose another place") from None
    console.print(f"wrote {path}; edit data.files, then: hyperslab run {path} --dry-run", soft_wrap=True)


@app.command()
def demo(directory: NewDirectory = None, assignments: Assignments = []) -> None:  # noqa: B006
    """Run a small campaign on eleven years of real monthly winds."""
    with resources.as_file(resources.files("hyperslab.workflows") / "demo") as folder:
        campaign = load_campaign(folder / "winds.yaml", assignments)
        _run(
            campaign,
            "local",
            CampaignDir((directory or _free(Path("campaigns") / "winds")).absolute()),
            dry_run=False,
        )


def _free(path: Path) -> Path:
    """The path itself, or with the first number that is not taken."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


@app.command()
def ui(
    directory: OptionalDirectory = None,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port on this machine.")] = 5000,
) -> None:
    """Serve the MLflow UI of campaigns, on this machine alone."""
    from hyperslab.workflows.tracking import database

    tracking = _tracking(directory)
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    console.print(f"MLflow at http://127.0.0.1:{port} in about 20 seconds; end it with Ctrl-C", soft_wrap=True)
    arguments = [
        "server",
        "--backend-store-uri",
        database(tracking),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    artifacts = ["--artifacts-destination", str(tracking / "artifacts"), "--workers", "1"]
    os.execve(sys.executable, [sys.executable, "-m", "mlflow", *arguments, *artifacts], environment)


def _tracking(directory: Path | None) -> Path:
    """The MLflow directory of a campaign, or of the campaigns beside one another in a directory."""
    from hyperslab.workflows.tracking import DATABASE

    start = (directory or Path("campaigns")).absolute()
    for candidate in (start / "mlflow", start.parent / "mlflow", start):
        if start.exists() and (candidate / DATABASE).exists():
            return candidate
    raise UserError(f"{start}: no MLflow database; give the directory of a campaign that has begun to train")


def _campaigns(directory: Path | None) -> list[CampaignDir]:
    """A campaign's directory, or all that lie in a directory."""
    start = (directory or Path("campaigns")).absolute()
    if CampaignDir(start).journal.exists():
        return [CampaignDir(start)]
    found = [CampaignDir(path.parent) for path in sorted(start.glob("*/journal.jsonl"))]
    if not found:
        raise UserError(f"{start}: holds no campaign; give the directory of one")
    return found


@app.command()
def version() -> None:
    """Print the version."""
    console.print(hyperslab.__version__)


for command in (
    stores.stage, stores.verify, stores.repair, archives.inspect, archives.simulate, archives.fetch, exports.export,
):  # fmt: skip
    app.command()(command)
app.add_typer(bench.app, name="bench")

if __name__ == "__main__":
    sys.exit(main())
