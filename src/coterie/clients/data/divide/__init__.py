"""Which samples each simulated client holds, and what its group's data look like."""
