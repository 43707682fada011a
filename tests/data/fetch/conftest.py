import os
from collections.abc import Iterator

import pytest

from tests.data.fetch.servers import Site, serving


@pytest.fixture
def site() -> Iterator[Site]:
    """A web server without files so far."""
    with serving(Site()) as started:
        yield started


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keys and proxies that the machine may have do not reach the tests."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "CDSAPI_", "ECMWF_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("CDSAPI_RC", str(home / ".cdsapirc"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
