"""Which tensors are private, group or global, and how they are averaged."""
