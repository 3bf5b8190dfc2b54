"""What a run would take, measured before it begins."""
