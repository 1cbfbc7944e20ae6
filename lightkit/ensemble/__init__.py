"""Ensembles: members that train together."""
