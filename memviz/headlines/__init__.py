"""Headlines of results: every headline of the page, the command line and programs is made here and nowhere else."""
