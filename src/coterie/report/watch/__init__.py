"""The live page of a folder of runs: what it reads, how it stops and resumes a run, and the server of the page."""
