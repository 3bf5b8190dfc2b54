"""Many runs: compare methods on the same clients, and rerun published tables."""
