"""Answers the work that rules ask for: client after client, or many clients in one kernel."""
