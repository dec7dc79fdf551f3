"""Real models with optimizations on and off: predicted, measured, and their outputs compared."""
