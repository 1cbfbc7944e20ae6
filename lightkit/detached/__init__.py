"""Runs that outlive the terminal they were started from, and what is seen of a run from outside of its process."""
