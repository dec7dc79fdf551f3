"""Traces in programs and notebooks: `memviz.open("run.pickle").peak()`.

A trace answers with small frozen results. Each prints as a sentence, shows as a table where HTML is shown, becomes a
pandas frame (`to_frame`), and holds the numbers that the command line writes with `--json` (`as_json`). It needs numpy
and no other library.
"""
