"""Results of questions about traces, ranks, runs and searches: frozen values with a headline, rows and JSON.

Sentences and JSON of results are made here alone; the command line, the page, programs and notebooks show them.
"""
