"""The predictor: a CUDA device that is not there."""
