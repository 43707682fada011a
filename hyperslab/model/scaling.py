"""Learning rates by width, so that a small model's settings carry to a large one."""

from typing import Any

from torch import nn

from hyperslab.model.config import BASE_WIDTH


def parameter_groups(model: nn.Module, learning_rate: float, weight_decay: float) -> list[dict[str, Any]]:
    """Parameters with the learning rate and the decay of each, for an optimizer that scales steps as Adam does.

    Matrices that take features to something (those of blocks, and heads) learn at the rate x `BASE_WIDTH` / width, as
    maximal-update parametrisation has it (Yang et al. 2022, arXiv 2203.03466, table 8); what takes the data to
    features, and vectors, at the rate itself. Only matrices decay, and no directions of features.

    Returns
    -------
    list of dict
        Groups for `torch.optim`; each holds its `scale`, the share of the learning rate that is its own.
    """
    width = getattr(model, "width", BASE_WIDTH)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        is_matrix = parameter.ndim >= 2
        is_head = name.split(".")[-2:][0].startswith("head_")
        takes_features = is_matrix and (name.startswith("blocks.") or is_head)
        decay = weight_decay if is_matrix and not name.endswith("directions") else 0.0
        groups.setdefault((BASE_WIDTH / width if takes_features else 1.0, decay), []).append(parameter)
    return [
        {"params": parameters, "lr": learning_rate * scale, "scale": scale, "weight_decay": decay}
        for (scale, decay), parameters in groups.items()
    ]
