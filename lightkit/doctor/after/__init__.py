"""What went wrong, from what is left of it: the files of a run, or a traceback."""
