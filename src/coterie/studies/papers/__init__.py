"""Published tables and figures, rerun: settings, printed numbers, claims."""
