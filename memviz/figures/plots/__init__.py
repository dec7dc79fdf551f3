"""One file per figure: a result of `memviz.analysis` drawn with plotly."""
