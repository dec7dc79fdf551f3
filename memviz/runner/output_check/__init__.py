"""Whether an optimization keeps the answers, as it claims."""
