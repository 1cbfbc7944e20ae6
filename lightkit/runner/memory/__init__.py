"""Runs and the memory they need: the largest batch that fits, and what is said when nothing fits."""
