"""Finding the description of a site."""

from importlib import resources
from pathlib import Path

from hyperslab.errors import UserError
from hyperslab.settings import parse, read_yaml
from hyperslab.site_configs.schema import Site


def shipped_sites() -> list[str]:
    """Names of the sites that Hyperslab knows."""
    folder = resources.files("hyperslab.site_configs")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def load_site(name: str) -> Site:
    """The site of that name, or the one that a YAML file of that path describes.

    Raises
    ------
    UserError
        When there is no such site, or its file has mistakes.
    """
    if name in shipped_sites():
        with resources.as_file(resources.files("hyperslab.site_configs") / f"{name}.yaml") as path:
            return parse(Site, read_yaml(path), path.name)
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        raise UserError(
            f"--site {name}: unknown site; known are {', '.join(shipped_sites())}, or give the path of a YAML file"
        )
    return parse(Site, read_yaml(path), str(path))
