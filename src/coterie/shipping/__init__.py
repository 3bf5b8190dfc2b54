"""A trained model put to use: predictions, exports, and a real federation of Flower nodes."""
