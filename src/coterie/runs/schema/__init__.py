"""What an experiment says: its sections, their checks, and TOML in and out."""
