import torch

from hyperslab.data.ahead import Reading
from hyperslab.data.loader import Loader, Sampling, windows_of
from hyperslab.model.config import ObjectiveSettings
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


def test_a_model_of_several_leads_is_judged_at_one_stroke_as_well() -> None:
    store = make_store()
    (task,) = make_tasks(store, objectives=(ObjectiveSettings(leads=2),))
    model = make_model(store, tasks=(task,)).eval()
    three = Sampling(history=task.sampling.history, lead=1, rollout=3)
    batch = Loader(store, windows_of(store, "train", three), three).read([0])
    with torch.no_grad():
        model.get_parameter("streams.main.head_forecast.weight").normal_(std=0.1)  # else all forecasts persist
        fields = forecast(task, model, batch)

    direct, rolled = fields["direct"], fields["forecast"]
    torch.testing.assert_close(direct[:, 0], rolled[:, 0])
    # The second is told to look two leads ahead, from frames that were seen; the third was never learned.
    assert not torch.allclose(direct[:, 1], rolled[:, 1])
    assert bool(direct[:, 1].isfinite().all())
    assert bool(direct[:, 2].isnan().all())


def test_a_model_of_one_lead_is_judged_by_its_roll_out_alone() -> None:
    (task,) = make_tasks(make_store())
    batch = task.loader(task.windows("test"), Reading()).read([0])

    with torch.no_grad():
        assert "direct" not in forecast(task, make_model(task.store).eval(), batch)
