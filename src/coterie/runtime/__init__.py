"""Runs a method: answers its exchanges, counts bytes, keeps checkpoints."""
