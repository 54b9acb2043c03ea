"""Modules of run.py: the list of parts, running a part, the probe before the run, and the report."""
