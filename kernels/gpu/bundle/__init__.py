"""What run.py is made of: which parts there are, how one is run, what is looked for first, and the report."""
