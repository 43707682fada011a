"""A trained model goes out of one campaign and into another, through one file."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from hyperslab.parallel import catalog, checkpoint
from tests.workflows import harness
from tests.workflows.conftest import Cli
from tests.workflows.test_cli import nothing_counts, refused


@pytest.fixture
def copied(finished: tuple[Path, float], tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished[0], tmp_path / "copy"))


def weights_at(directory: Path, step: int) -> dict[str, torch.Tensor]:
    return checkpoint.read_weights(catalog.place_of(directory / "checkpoints", step))


def equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)


def test_the_latest_weights_and_those_of_a_step_are_exported(call: Cli, copied: Path, tmp_path: Path) -> None:
    last, earlier = tmp_path / "last.safetensors", tmp_path / "earlier.safetensors"
    code, out, _ = call("export", copied, last)
    assert (code, len(out.splitlines())) == (0, 1)
    assert re.search(rf"wrote {last}: \d+ tensors, [\d,]+ bytes, after {harness.TRAIN_STEPS} steps", out)
    assert call("export", copied, earlier, "--step", "80")[0] == 0
    assert equal(load_file(last), weights_at(copied, harness.TRAIN_STEPS))
    assert equal(load_file(earlier), weights_at(copied, 80))
    assert not equal(load_file(last), load_file(earlier))
    with safe_open(earlier, framework="pt") as held:
        metadata = held.metadata()
    assert (metadata["campaign"], metadata["step"]) == ("campaign", "80")
    progress = catalog.read_progress(catalog.place_of(copied / "checkpoints", 80))
    assert (metadata["store_digest"], metadata["order_digest"]) == (progress.store_digest, progress.order_digest)


def test_what_cannot_be_exported_is_a_mistake(call: Cli, copied: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.safetensors"
    refused(call("export", copied, file, "--step", "7"), "--step: found 7; there are checkpoints of steps 60, 80, 90")
    (copied / "checkpoints" / "step-00000080" / "__0_0.distcp").write_text("")
    refused(call("export", copied, file, "--step", "80"), "__0_0.distcp: was changed .*; export another step")
    shutil.rmtree(copied / "checkpoints")
    refused(call("export", copied, file), "holds no checkpoint yet")
    refused(call("export", tmp_path / "none", file), "is no campaign's directory")
    assert not file.exists()


def test_an_export_takes_the_checkpoint_before_a_damaged_one_and_touches_neither(
    call: Cli, copied: Path, tmp_path: Path
) -> None:
    (copied / "checkpoints" / "step-00000090" / "__0_0.distcp").write_text("")
    code, out, _ = call("export", copied, tmp_path / "out.safetensors")
    assert code == 0
    assert "step-00000090 is passed over, and step-00000080 is taken" in out
    assert equal(load_file(tmp_path / "out.safetensors"), weights_at(copied, 80))
    assert (copied / "checkpoints" / "step-00000090").exists()


def test_a_campaign_begins_with_the_weights_of_a_file(call: Cli, finished: tuple[Path, float], tmp_path: Path) -> None:
    assert call("export", finished[0], tmp_path / "winds.safetensors")[0] == 0
    harness.write_raw(tmp_path / "raw.nc")
    # So low a rate moves no weight: what is saved after a step is what training began with.
    train = {"init_from": "winds.safetensors", "steps": 1, "learning_rate": 1e-30, "weight_decay": 0.0}
    file = harness.write_campaign(tmp_path / "campaign.yaml", train=train)
    harness.run("run", file, "--dir", tmp_path / "c")
    assert equal(weights_at(tmp_path / "c", 1), load_file(tmp_path / "winds.safetensors"))


def test_a_file_that_is_not_there_is_refused_before_anything_is_done(call: Cli, tmp_path: Path) -> None:
    harness.write_raw(tmp_path / "raw.nc")
    file = harness.write_campaign(tmp_path / "campaign.yaml", train={"init_from": "gone.safetensors"})
    refused(
        call("run", file, "--dir", tmp_path / "c"), rf"train\.init_from: {tmp_path}/gone\.safetensors: no such file"
    )
    nothing_counts(tmp_path / "c")


def test_a_file_of_another_model_ends_the_campaign_with_what_does_not_fit(
    call: Cli, finished: tuple[Path, float], tmp_path: Path
) -> None:
    assert call("export", finished[0], tmp_path / "winds.safetensors")[0] == 0
    harness.write_raw(tmp_path / "raw.nc")
    file = harness.write_campaign(
        tmp_path / "campaign.yaml", train={"init_from": "winds.safetensors"}, model={"width": 32, "depth": 2}
    )
    done = harness.run("run", file, "--dir", tmp_path / "c", check=False)
    words = r"train\.init_from: .*winds\.safetensors: does not fit the model: missing: blocks\.1\..*of another kind: "
    refused((done.returncode, done.stdout, done.stderr), words)
