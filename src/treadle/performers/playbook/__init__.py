"""A playbook's step-runs: pipelines of tasks, their checkpoints, policies and results."""
