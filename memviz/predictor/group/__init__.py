"""The other ranks, which are not there: one rank of many runs, and what they would send is pretended."""
