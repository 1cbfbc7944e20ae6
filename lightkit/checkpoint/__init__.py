"""Checkpoints: what is saved (`content`), and files that survive crashes (`store`)."""
