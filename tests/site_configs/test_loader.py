from pathlib import Path

import pytest

from hyperslab.errors import UserError
from hyperslab.site_configs.loader import load_site, shipped_sites

SITES = sorted(path.stem for path in (Path(__file__).parents[2] / "hyperslab" / "site_configs").glob("*.yaml"))


def test_the_shipped_sites_are_the_yaml_files_of_the_package() -> None:
    assert "local" in SITES
    assert shipped_sites() == SITES


@pytest.mark.parametrize("name", SITES)
def test_every_shipped_site_loads_and_bears_the_name_of_its_file(name: str) -> None:
    assert load_site(name).name == name


def test_an_unknown_site_is_answered_with_the_known_ones() -> None:
    known = ", ".join(SITES)
    with pytest.raises(UserError, match=f"--site atlantis: unknown site; known are {known}, or give the path"):
        load_site("atlantis")


def test_a_file_of_ones_own_describes_a_site(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nranks_per_node: 4\n")
    site = load_site(str(path))
    assert (site.name, site.ranks_per_node) == ("mine", 4)


def test_a_site_file_that_is_absent_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.yml: no such file"):
        load_site(str(tmp_path / "absent.yml"))


def test_a_mistake_in_a_site_file_names_the_file_and_the_nearest_key(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nrank_per_node: 4\n")
    with pytest.raises(UserError, match=r"mine\.yaml: rank_per_node: .*did you mean `ranks_per_node`"):
        load_site(str(path))
