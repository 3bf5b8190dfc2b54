"""Methods side by side: the same clients, the same seeds, the same budget, and one table of what came of it."""
