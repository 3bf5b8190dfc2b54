"""Models after training: predict with them, export them."""
