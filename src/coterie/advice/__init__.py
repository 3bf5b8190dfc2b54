"""Answers before training: do clients form groups, and what would a run take."""
