"""What it would have been: PyTorch's caching allocator as a model, and recordings replayed on it."""
