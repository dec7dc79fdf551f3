"""Results of `memviz.analysis` drawn with plotly."""
