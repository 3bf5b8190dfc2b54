"""The server and the client of an experiment on a Flower federation."""
