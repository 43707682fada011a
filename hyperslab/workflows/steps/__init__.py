"""The steps of a campaign, in their order."""

STEPS = ("plan", "stage", "pretrain", "evaluate", "report")
