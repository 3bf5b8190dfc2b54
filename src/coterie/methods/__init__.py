"""One published system per file."""
