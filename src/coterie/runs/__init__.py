"""One run: what an experiment says, the loop that plays it, and the folder that it leaves."""
