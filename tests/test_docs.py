"""What the documentation says is true: its blocks run, its tables are those of the models, its links lead somewhere."""

import datetime
import doctest
import glob
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import typer
import xarray as xr
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from rich.console import Console

import hyperslab
from hyperslab.data.fetch.plan import load_request
from hyperslab.site_configs.loader import load_site
from hyperslab.site_configs.schema import Site
from hyperslab.workflows import cli
from hyperslab.workflows.campaign import Campaign, load_campaign
from hyperslab.workflows.steps.report import skill_table
from tests.workflows import harness

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
DEMO = resources.files("hyperslab.workflows") / "demo"

NOT_RUN = {
    "make demo": "installs",
    "make test": "runs these tests",
    "make check": "installs",
    "make docs": "installs",
    "make benchmark": "installs, and takes two minutes",
    "source .venv/bin/activate": "changes the shell",
    "conda env create --file environment.yml": "installs",
    "conda activate hyperslab": "changes the shell",
    "pip install --no-deps --editable .": "installs",
    "pre-commit install": "changes the checkout",
    "pytest tests/data": "runs the tests",
    'pytest -m "not slow"': "runs the tests",
    "ssh -L 5000:127.0.0.1:5000 login.example.org": "needs another machine",
    "tail campaigns/winds/journal.jsonl": "is no command of ours",
}
"""Lines of shell that the tests leave out, and why; every one stands in a page."""

TOO_LONG = {"run", "stage", "resume", "fetch", "demo", "ui"}
"""Commands that are parsed but not run; a dry run is run."""

WORDS: dict[Any, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    list[str]: "list of text",
    list[float]: "list of numbers",
    list[int]: "list of whole numbers",
    tuple[int, int]: "two whole numbers",
    tuple[int, int, int]: "three whole numbers",
    datetime.date: "date",
    float | datetime.date: "share or date",
    int | list[int]: "whole number, or list of them",
    dict[str, float]: "numbers by name",
}
LIMITS = {
    "ge": "at least {}",
    "gt": "above {}",
    "le": "at most {}",
    "lt": "below {}",
    "min_length": "not empty",
}
GIVEN_ELSEWHERE: dict[tuple[type[BaseModel], str], str] = {(Campaign, "name"): "the file's name"}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    title: str
    text: str
    line: int
    """Lines of the page before its text."""


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    fence = re.compile(r'^```(\S+)(?: title="([^"\n]+)")?\n(.*?)^```$', flags=re.MULTILINE | re.DOTALL)
    found = []
    for match in fence.finditer(text):
        language, title, body = match.groups(default="")
        found.append(Block(language, title, body, line=text.count("\n", 0, match.start(3))))
    assert 2 * len(found) == len(re.findall(r"^\s*(?:```|~~~)", text, flags=re.MULTILINE)), f"{page}: odd fences"
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the demo's raw file, a `campaign.yaml` over it, and `campaigns/winds` finished on a coarse copy."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "raw").mkdir()
    (folder / "coarse").mkdir()
    (folder / "campaign.yaml").write_text("data: {files: [raw/*.nc]}")
    with resources.as_file(DEMO) as demo:
        shutil.copy(demo / "winds.nc", folder / "raw")
        shutil.copy(demo / "winds.yaml", folder / "coarse")
    with xr.open_dataset(folder / "raw" / "winds.nc") as winds:
        every_eighth = slice(None, None, 8)
        winds.isel(latitude=every_eighth, longitude=every_eighth).to_netcdf(folder / "coarse" / "winds.nc")
    small = ["train.steps=4", "checkpoint.every=2", "model.width=16", "model.depth=1", "parallel.ranks=1"]
    settings = [word for setting in small for word in ("--set", setting)]
    harness.run("run", folder / "coarse" / "winds.yaml", "--set", "data.shard_mebibytes=0.02", *settings, cwd=folder)
    return folder


@pytest.fixture
def workplace(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which a page's commands run: its own copy of `finished`."""
    folder = tmp_path / "workplace"
    shutil.copytree(finished, folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[[list[str]], str]:
    """Run `hyperslab` in this process, and give what it printed."""

    def run(words: list[str]) -> str:
        monkeypatch.setattr(sys, "argv", ["hyperslab", *words])
        capfd.readouterr()
        code = cli.main()
        printed = capfd.readouterr()
        assert code == 0, (words, printed.err)
        return printed.out

    return run


def parse(words: list[str]) -> dict[str, Any]:
    """The values that the command line would give a command; fails on a name or an option that it does not know."""
    group: Any = typer.main.get_command(cli.app)
    assert words[0] in group.commands, f"no command {words[0]}"
    return dict(group.commands[words[0]].make_context(words[0], words[1:]).params)


def commands(block: Block) -> Iterator[tuple[str, str]]:
    """The commands of a block, each with the output that the block shows below it."""
    if block.language == "bash":
        yield from ((line, "") for line in block.text.splitlines() if line.strip())
    else:
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            line, _, output = part.partition("\n")
            yield line, output


def run_shell(block: Block, call: Callable[[list[str]], str]) -> None:
    for line, expected in commands(block):
        name, *words = shlex.split(line, comments=True)
        if name == "make":
            assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE), line
        if name != "hyperslab":
            assert line in NOT_RUN, f"{line}: is run by no test; add it to NOT_RUN with the reason"
            continue
        words = [found for word in words for found in (sorted(glob.glob(word)) or [word])]  # noqa: PTH207
        values = parse(words)
        if values.get("follow") or (words[0] in TOO_LONG and not values.get("dry_run")):
            assert not expected, f"{line}: its output is checked by no test"
            continue
        printed = call(words)
        rules = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        assert not expected or doctest.OutputChecker().check_output(expected, printed, rules), (expected, printed)


def check_yaml(block: Block) -> None:
    """Load a campaign or a site; with a title it stays, for the commands below it."""
    path = Path(block.title or "untitled.yaml")
    path.write_text(block.text, encoding="utf-8")
    keys = yaml.safe_load(block.text)
    if "data" in keys:
        load_campaign(path, [])
    elif "archive" in keys:
        load_request(path)
    else:
        load_site(str(path))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_blocks_of_a_page_run(page: Path, request: pytest.FixtureRequest) -> None:
    found = blocks(page)
    assert {block.language for block in found} <= {"python", "bash", "console", "yaml", "text"}, page
    if not found:
        return
    request.getfixturevalue("workplace")
    call = request.getfixturevalue("call")
    for block in found:
        if block.language == "python":
            # Empty lines before it let a traceback name the line of the page.
            exec(compile("\n" * block.line + block.text, str(page), "exec"), {"__name__": "__main__"})
        elif block.language in ("bash", "console"):
            run_shell(block, call)
        elif block.language == "yaml":
            check_yaml(block)


def test_every_command_that_stands_in_a_sentence_is_known_to_the_command_line() -> None:
    found = [words for page in PAGES for words in re.findall(r"`hyperslab ([a-z][^`]*)`", page.read_text())]
    assert len(found) > 10
    needed = {
        "run": ["campaign.yaml"],
        "stage": ["campaign.yaml"],
        "inspect": ["raw.nc"],
        "verify": ["store"],
        "repair": ["dir"],
        "export": ["dir", "model.safetensors"],
        "simulate": ["era5", "out"],
        "fetch": ["request.yaml", "out"],
        "resume": ["dir"],
        "logs": ["dir"],
        "bench": ["read", "store"],
    }
    for words in found:
        command, *rest = shlex.split(words)
        # In a sentence a command may stand without its file or directory.
        bare = all(word.startswith("-") for word in rest)
        parse([command, *(needed.get(command, []) if bare else []), *rest])


def test_every_line_that_is_left_out_stands_in_a_page() -> None:
    lines = {line for page in PAGES for block in blocks(page) for line in block.text.splitlines()}
    assert set(NOT_RUN) <= lines, set(NOT_RUN) - lines


def plain(kind: Any) -> Any:
    """A type without what pydantic was told of its values."""
    if hasattr(kind, "__metadata__"):
        return plain(typing.get_args(kind)[0])
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (list, tuple, dict):
        return origin[tuple(map(plain, inner))]
    return kind


def members_of(field: FieldInfo) -> list[Any]:
    """The types that a key takes, but for its absence."""
    kind = plain(field.annotation)
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return [plain(part) for part in typing.get_args(kind) if part is not type(None)]
    return [kind]


def model_of(field: FieldInfo) -> type[BaseModel] | None:
    """The settings below a key, or below each entry of its list or mapping."""
    kind = members_of(field)[0]
    if typing.get_origin(kind) in (list, dict):
        kind = plain(typing.get_args(kind)[-1])
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def value_words(field: FieldInfo) -> str:
    """What a key takes, in words: its type and its limits."""
    members = members_of(field)
    kind = members[0] if len(members) == 1 else typing.Union[tuple(members)]  # noqa: UP007
    if typing.get_origin(kind) is typing.Literal:
        return " or ".join(f"`{choice}`" for choice in typing.get_args(kind))
    limits = [
        words.format(getattr(mark, name))
        for mark in field.metadata
        for name, words in LIMITS.items()
        if getattr(mark, name, None) is not None
    ]
    return ", ".join([WORDS[kind], *limits])


def default_words(model: type[BaseModel], name: str, field: FieldInfo) -> str:
    if (model, name) in GIVEN_ELSEWHERE:
        return GIVEN_ELSEWHERE[model, name]
    if field.is_required():
        return "required"
    return {"None": "absent", "": "empty"}.get(str(field.default), f"`{field.default}`")


def rows(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The rows of a page's table of keys."""
    for name, field in model.model_fields.items():
        below = model_of(field)
        if below is not None:
            entry = ".NAME" if typing.get_origin(members_of(field)[0]) is dict else ""
            yield from rows(below, f"{prefix}{name}{entry}.")
        else:
            default, meaning = default_words(model, name, field), " ".join((field.description or "").split())
            yield f"| `{prefix}{name}` | {value_words(field)} | {default} | {meaning} |"


@pytest.mark.parametrize(("page", "model"), [("campaign.md", Campaign), ("sites.md", Site)])
def test_a_page_names_every_key_with_its_values_and_its_default(page: str, model: type[BaseModel]) -> None:
    table = (DOCS / page).read_text().split("## Keys")[1].split("\n## ")[0]
    assert re.findall(r"^\| `.*$", table, flags=re.MULTILINE) == list(rows(model))


def test_a_campaign_without_a_name_takes_its_files(tmp_path: Path) -> None:
    (tmp_path / "rain.yaml").write_text("data: {files: [rain.nc]}")
    assert load_campaign(tmp_path / "rain.yaml", []).name == "rain"


def test_the_readme_shows_the_skill_table_as_it_is_printed() -> None:
    (shown,) = [block.text for block in blocks(ROOT / "README.md") if "persistence" in block.text]
    found, kinds = [], ("forecast", "persistence", "climatology")
    for line in re.findall(r"^│(.*)│$", shown, flags=re.MULTILINE):
        variable, lead, *cells = (cell.strip() for cell in line.split("│"))
        channel, units = variable.removesuffix("]").split(" [")
        for kind, cell in zip(kinds, cells, strict=True):
            rmse, _, acc = cell.removesuffix(")").partition(" (")
            scores = {"rmse": float(rmse), "acc": float(acc) if acc else None}
            found.append({"kind": kind, "channel": channel, "units": units, "lead": int(lead.split()[0]), **scores})
    assert len(found) == 2 * 3 * len(kinds)
    skill = {"archive": "main", "what": "forecasts", "samples": 20, "cadence": "1 month", "lead_frames": 1}
    console = Console(width=120)
    with console.capture() as capture:
        console.print(skill_table(skill | {"rows": found}, 200))
    assert [line.rstrip() for line in capture.get().splitlines()] == shown.splitlines()


def project() -> dict[str, Any]:
    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])


def test_the_conda_environment_holds_the_dependencies_of_the_project() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    (packages,) = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    assert packages == project()["dependencies"]
    assert environment["name"] == project()["name"]
    (python,) = [entry for entry in environment["dependencies"] if str(entry).startswith("python=")]
    assert project()["requires-python"].startswith(">=" + python.removeprefix("python="))


def test_every_direct_dependency_is_pinned_within_its_range() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines if line)}
    extras = project()["optional-dependencies"].values()
    direct = [Requirement(text) for texts in (project()["dependencies"], *extras) for text in texts]
    outside = [requirement for requirement in direct if requirement.name != project()["name"]]
    assert len(outside) > 20
    for requirement in outside:
        pin = pins.get(canonicalize_name(requirement.name))
        assert pin is not None, f"{requirement.name} is not pinned"
        assert pin in requirement.specifier, f"{requirement.name}: {pin} is outside of {requirement.specifier}"


def test_the_citation_is_of_this_version_and_licence() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == hyperslab.__version__
    assert citation["license"] == project()["license"]


def test_relative_links_lead_to_files() -> None:
    links = [
        (page, link)
        for page in PAGES
        for link in re.findall(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)", page.read_text())
        if not link.startswith(("http:", "https:", "mailto:"))
    ]
    assert len(links) > 15
    assert [(page, link) for page, link in links if not (page.parent / link).exists()] == []


def test_the_pages_build_strictly_and_load_nothing_from_elsewhere(tmp_path: Path) -> None:
    for name in ("mkdocs", "material"):
        pytest.importorskip(name, reason="the documentation is built where the dev tools are installed: make check")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    built = list(tmp_path.rglob("*.html"))
    assert len(built) >= len(list(DOCS.rglob("*.md")))
    for page in built:
        elsewhere = re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"?(?:https?:)?//[^>]*>", page.read_text())
        assert elsewhere == [], page
