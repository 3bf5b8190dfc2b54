"""What one client does."""
