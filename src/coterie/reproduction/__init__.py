"""Published tables and figures beside ours: what was printed, what was measured, and which claims hold."""
