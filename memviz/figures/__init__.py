"""How results look. The only part that imports plotly; it decides nothing about numbers."""
