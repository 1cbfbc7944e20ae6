"""Proof that a fine-tuning does what it says: the plan before the run, the audit in it."""
