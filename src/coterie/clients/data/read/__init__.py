"""Where samples come from: named datasets, files, and what Python is given, as columns and then inputs."""
