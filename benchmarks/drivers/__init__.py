"""One script a simulator, each run by the Python of that simulator's own environment.

A driver reads a workload from a folder, builds it with the simulator's public interface, and then does one round
each time it is told to. `benchmarks.peers` writes the folders and tells them in turn.
"""
