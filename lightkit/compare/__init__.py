"""Runs side by side: what tells them from each other, what they came to over their seeds, and what of it is chance."""
