"""The published tables and figures as data: one TOML file each, read by `coterie.reproduction.item`."""
