import torch

from hyperslab.data.ahead import Reading
from hyperslab.workflows.steps.evaluate import forecast
from tests.parallel.training import make_model, make_store, make_tasks


def test_an_untrained_model_is_judged_as_persistence_where_inputs_miss_values_too() -> None:
    # The second channel is always missing at three points: both go by the mean there.
    (task,) = make_tasks(make_store())
    batch = task.loader(task.windows("test"), Reading()).read([0, 1])
    assert not bool(batch.inputs.isfinite().all())

    with torch.no_grad():
        fields = forecast(task, make_model(task.store).eval(), batch)

    torch.testing.assert_close(fields["persistence"], fields["forecast"])
