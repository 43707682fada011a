"""The command that takes a trained model out of its campaign: `hyperslab export`."""

from pathlib import Path
from typing import Annotated

import typer

from hyperslab.errors import UserError
from hyperslab.workflows.campaign import CampaignDir
from hyperslab.workflows.options import Directory, console


def export(
    directory: Directory,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The safetensors file to write.")],
    step: Annotated[int | None, typer.Option("--step", help="Of which checkpoint; the latest where absent.")] = None,
) -> None:
    """Write the weights of a checkpoint's model to one file, for other programs and campaigns."""
    from hyperslab.parallel import catalog, weights

    found = CampaignDir(directory.absolute())
    campaign = found.read()
    path = _checkpoint(found.checkpoints, step)
    tensors = weights.export(path, file, campaign.name)
    size = sum(tensor.nbytes for tensor in tensors.values())
    done = catalog.read_progress(path).step
    console.print(f"wrote {file}: {len(tensors)} tensors, {size:,} bytes, after {done} steps", soft_wrap=True)


def _checkpoint(directory: Path, step: int | None) -> Path:
    """The checkpoint of a step, or the latest, found whole."""
    from hyperslab.parallel import catalog, checkpoint

    if step is None:
        latest = checkpoint.choose(directory, set_aside=False)
        if latest is None:
            raise UserError(f"{directory}: holds no checkpoint yet; train first with `hyperslab resume`")
        return latest
    path = catalog.place_of(directory, step)
    if not path.exists():
        steps = [str(catalog.read_progress(other).step) for other in catalog.finished(directory)]
        raise UserError(f"--step: found {step}; there are checkpoints of steps {', '.join(steps) or 'none'}")
    damage = catalog.damage_of(path)
    if damage is not None:
        raise UserError(f"{damage}; export another step")
    return path
