"""Proof that a run can be killed and resumed without a trace of it."""
