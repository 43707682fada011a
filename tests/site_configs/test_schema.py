import pytest

from hyperslab.errors import UserError
from hyperslab.settings import parse
from hyperslab.site_configs.schema import Site


@pytest.mark.parametrize("key", ["ranks_per_node", "threads_per_rank", "staging_workers"])
def test_a_count_below_one_is_refused(key: str) -> None:
    with pytest.raises(UserError, match=f"{key}: found 0; input should be greater than or equal to 1"):
        parse(Site, {"name": "here", key: 0}, "here.yaml")


def test_an_unknown_device_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UserError, match="device: found 'tpu'; input should be 'cpu' or 'cuda'"):
        parse(Site, {"name": "here", "device": "tpu"}, "here.yaml")
