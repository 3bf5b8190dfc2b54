"""One TOML file a published table or figure."""
