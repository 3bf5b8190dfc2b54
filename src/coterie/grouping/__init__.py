"""Who belongs together: affinities, clusterers, triggers; arrays in, arrays out."""
