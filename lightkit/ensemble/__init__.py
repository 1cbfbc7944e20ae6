"""Ensembles: the statistics of several networks' predictions, and how they become one."""
