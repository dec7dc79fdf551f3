"""Model of PyTorch's caching allocator, and replays of recordings on it."""
