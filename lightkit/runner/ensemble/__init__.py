"""Runs of several models: their engines, what they come to together, and ensembles of runs that have finished."""
