"""Data and model of this project."""
